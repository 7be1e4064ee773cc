// SPDX-License-Identifier: Apache-2.0
/* Fuzzes the input of the control socket: an order, and the file of rules that comes with it. */
#define _GNU_SOURCE
#include "orders.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Rules are read the same way whether the change has succeeded or failed. */
static void look_up(const struct board *b)
{
	static const uint8_t address[BOARD_ADDRESS_MAX] = {2, 0, 0, 80, 198, 51, 100, 2};

	board_look_up(b, BOARD_SIZE, address, sizeof(address));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct board *board;
	static int file = -1;
	struct gate_order order;
	size_t length;

	if (board == NULL) {
		board = calloc(1, BOARD_SIZE);
		file = memfd_create("rules", MFD_CLOEXEC);
	}
	if (board == NULL || file < 0 || size == 0)
		return 0;
	length = data[0] % (sizeof(order) + 2);
	if (length > size - 1)
		length = size - 1;
	if (gate_order_parse(&data[1], length, data[0] >> 7, &order) != 0)
		return 0;
	data += 1 + length;
	size -= 1 + length;
	gate_order_set(board, &order);
	if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != (ssize_t)size)
		abort();
	gate_order_rules(board, file, order.value);
	look_up(board);
	if (size > 0 && gate_order_rules(board, file, (uint32_t)size) != 0)
		abort();
	look_up(board);
	return 0;
}
