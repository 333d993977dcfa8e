"""Where the problems that a compile consists of are solved: in threads, in processes, or by Ray; a file for each."""
