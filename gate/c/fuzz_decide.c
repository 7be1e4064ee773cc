// SPDX-License-Identifier: Apache-2.0
/* Fuzzes the input that programs control: the bytes of a sockaddr and socket(2)'s arguments; and a
 * board whose rules change while they are read. */
#include "decide.h"

#include "../../policy/c/board.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct board_address to;
	struct gate_kind kind;
	size_t rules;
	char *board;
	int args[3];

	if (size < 1 + BOARD_ADDRESS_MAX + sizeof(args) + BOARD_COUNTERS)
		return 0;
	memcpy(args, &data[1 + BOARD_ADDRESS_MAX], sizeof(args));
	gate_kind_of(data[0], args[0], args[1], args[2], &kind);
	gate_bind_is_passed(&data[1], data[0] % (BOARD_ADDRESS_MAX + 1));
	rules = size - (1 + BOARD_ADDRESS_MAX + sizeof(args) + BOARD_COUNTERS);
	board = calloc(1, BOARD_RULES + rules); /* of its exact size, for the sanitizer */
	if (board == NULL)
		return 0;
	memcpy(board, &data[size - rules - BOARD_COUNTERS], BOARD_COUNTERS);
	memcpy(board + BOARD_RULES, &data[size - rules], rules);
	to = board_look_up((void *)board, BOARD_RULES + rules, &data[1],
			   data[0] % (BOARD_ADDRESS_MAX + 1));
	board_place_for((void *)board, &to);
	board_bind_is_free((void *)board, &data[1], data[0] % (BOARD_ADDRESS_MAX + 1));
	free(board);
	return 0;
}
