(function () {
  var root = document.documentElement, key = "sccvfl-theme", dark = matchMedia("(prefers-color-scheme: dark)");
  var chosen = null;
  try { chosen = localStorage.getItem(key); } catch (e) { /* a page from disk may have no storage */ }
  function show() { root.dataset.theme = chosen || (dark.matches ? "dark" : "light"); }
  show();
  dark.addEventListener("change", show);
  addEventListener("beforeprint", function () { document.querySelectorAll("details").forEach(function (d) { d.open = true; }); });
  addEventListener("DOMContentLoaded", function () {
    document.getElementById("theme").addEventListener("click", function () {
      chosen = root.dataset.theme === "dark" ? "light" : "dark";
      try { localStorage.setItem(key, chosen); } catch (e) { /* see above */ }
      show();
    });
  });
})();
