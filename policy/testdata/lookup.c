// SPDX-License-Identifier: Apache-2.0
/*
 * Looks destinations up in a snapshot: lookup IMAGE < destinations. Each is 16
 * bytes of address and two of port, in network order. Prints the index of the
 * endpoint, or -1, on a line each.
 */
#include "../../native/rules/rules.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	static uint64_t image[1 << 15];
	const struct rules *rules = (const struct rules *)image;
	uint8_t to[18];
	size_t size;
	FILE *f;

	if (argc != 2 || (f = fopen(argv[1], "rb")) == NULL)
		return 2;
	size = fread(image, 1, sizeof(image), f);
	if (!rules_check(image, size)) {
		fputs("the image is broken\n", stderr);
		return 1;
	}
	while (fread(to, sizeof(to), 1, stdin) == 1) {
		const struct rules_endpoint *ep =
			rules_find(rules, to, (uint16_t)(to[16] << 8 | to[17]));

		printf("%ld\n", ep == NULL ? -1L : (long)(ep - rules_endpoints(rules)));
	}
	return 0;
}
