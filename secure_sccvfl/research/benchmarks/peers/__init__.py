"""Other systems, each in processes of its own: stock CrypTen, and SPU (ABY3) where an environment has it."""
