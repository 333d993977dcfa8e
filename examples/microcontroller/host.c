/* Output on a computer. */
#include <stdio.h>

void print(const char *text);

void print(const char *text) { fputs(text, stdout); }
