// SPDX-License-Identifier: Apache-2.0
/* What the compiler expects of a C library. */
#include <stddef.h>

void *memcpy(void *restrict to, const void *restrict from, size_t size);
int memcmp(const void *a, const void *b, size_t size);
void *memset(void *at, int byte, size_t size);

void *memcpy(void *restrict to, const void *restrict from, size_t size)
{
	for (size_t i = 0; i < size; i++)
		((char *)to)[i] = ((const char *)from)[i];
	return to;
}

void *memset(void *at, int byte, size_t size)
{
	for (size_t i = 0; i < size; i++)
		((char *)at)[i] = (char)byte;
	return at;
}

int memcmp(const void *a, const void *b, size_t size)
{
	const unsigned char *x = a, *y = b;

	for (size_t i = 0; i < size; i++)
		if (x[i] != y[i])
			return x[i] < y[i] ? -1 : 1;
	return 0;
}
