// SPDX-License-Identifier: Apache-2.0
/* What programs control: the bytes of a sockaddr, socket(2)'s arguments; and
 * the image of the rules, of which a broken one must be noticed. */
#include "gate.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct gate_kind kind;
	size_t length;
	void *image;
	int args[3];

	if (size < 1 + GATE_ADDRESS_MAX + sizeof(args))
		return 0;
	memcpy(args, &data[1 + GATE_ADDRESS_MAX], sizeof(args));
	gate_kind_of(data[0], args[0], args[1], args[2], &kind);
	length = size - (1 + GATE_ADDRESS_MAX + sizeof(args));
	image = malloc(length ? length : 1); /* of its exact size, for the sanitizer */
	if (image == NULL)
		return 0;
	memcpy(image, &data[size - length], length);
	if (rules_check(image, length))
		gate_look_up(image, &data[1], data[0] % (GATE_ADDRESS_MAX + 1));
	free(image);
	return 0;
}
