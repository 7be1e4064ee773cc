// SPDX-License-Identifier: Apache-2.0
/*
 * Looks destinations up in a snapshot: lookup IMAGE < destinations. Each is 16
 * bytes of address and two of port, in network order. Prints the index of the
 * endpoint, or -1, on a line each.
 */
#include "../c/rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	static uint64_t image[1 << 15];
	uint8_t to[18];
	void *exact; /* of its size, for the sanitizer */
	size_t size;
	FILE *f;

	if (argc != 2 || (f = fopen(argv[1], "rb")) == NULL)
		return 2;
	size = fread(image, 1, sizeof(image), f);
	exact = malloc(size ? size : 1);
	if (exact == NULL)
		return 2;
	memcpy(exact, image, size);
	while (fread(to, sizeof(to), 1, stdin) == 1) {
		struct rules_endpoint ep;
		int64_t found = rules_find(exact, size, to, (uint16_t)(to[16] << 8 | to[17]), &ep);

		if (found == RULES_BROKEN) {
			fputs("the image is broken\n", stderr);
			return 1;
		}
		printf("%ld\n", (long)found);
	}
	free(exact);
	return 0;
}
