// SPDX-License-Identifier: Apache-2.0
/*
 * Sends with an address. The filter traps them only where rules divide the destinations of
 * datagrams. It also traps those with MSG_FASTOPEN, which connect. For these sends, the shim does
 * the same as for connect.
 *
 * sendto(2) has six arguments and none left for a mark: it becomes sendmsg(2).
 *
 * musl's struct msghdr and cmsghdr have holes where the kernel's have the upper half
 * of a length; musl fills them in when it is called. So what has holes goes to the C
 * library, unmarked, unless it is glibc.
 */
#include <stddef.h>

#include "decide.h"
#include "kernel.h"
#include "libc.h"
#include "marks.h"

#define SEND_FASTOPEN	  0x20000000
#define SEND_SOCKADDR_MIN 16
#define SEND_SOCKADDR_MAX 128 /* sendto(2) refuses a longer one, sendmsg(2) cuts it */

struct send_iovec {
	const void *base;
	size_t length;
};

struct send_message {
	const void *name;
	unsigned int name_length;
	const struct send_iovec *iov;
	size_t iov_count; /* musl: an int and a hole */
	const void *control;
	size_t control_length; /* musl: likewise */
	int flags;
};

typedef long send_message_function(int number, const struct send_message *message, int flags);
typedef int send_messages_function(int number, struct send_message *messages, unsigned int count,
				   unsigned int flags);

extern void *dlsym(void *handle, const char *name) SHIM_WEAK;
extern const char *gnu_get_libc_version(void) SHIM_WEAK;

SHIM_EXPORT long sendto(int number, const void *bytes, size_t length, int flags,
			const void *address, unsigned int address_length);
SHIM_EXPORT send_message_function sendmsg;
SHIM_EXPORT send_messages_function sendmmsg;

static send_message_function *send_next;
static send_messages_function *send_next_many;

__attribute__((constructor)) static void send_start(void)
{
	void *const next = (void *)-1L; /* RTLD_NEXT */

	if (dlsym == NULL) /* an old glibc without libdl, where calls will do */
		return;
	send_next = (send_message_function *)dlsym(next, "sendmsg");
	send_next_many = (send_messages_function *)dlsym(next, "sendmmsg");
}

/* Whether a send with these flags needs a decision. */
static bool send_is_decided(int flags)
{
	const struct board *b = shim_board();

	if (shim_is_untrapped(b))
		return false;
	return b == NULL || b->datagrams || flags & SEND_FASTOPEN;
}

long sendto(int number, const void *bytes, size_t length, int flags, const void *address,
	    unsigned int address_length)
{
	const struct send_iovec iov = {bytes, length};
	const struct send_message message = {address, address_length, &iov, 1, NULL, 0, 0};
	const long plain[6] = {number, (long)bytes,   (long)length,
			       flags,  (long)address, address_length};
	long marked[6] = {number, (long)&message, flags};

	if (address == NULL || address_length < SEND_SOCKADDR_MIN ||
	    address_length > SEND_SOCKADDR_MAX || !send_is_decided(flags))
		return shim_result(shim_waiting_call(__NR_sendto, plain));
	marked[5] = (long)shim_mark(number, address, address_length, NULL);
	return shim_result(shim_waiting_call(__NR_sendmsg, marked));
}

/* The mark for a message, or 0 if the C library is to send it as it is. */
static uint64_t send_mark(int number, const struct send_message *message)
{
	if (!shim_readable(message, sizeof(*message)) || message->name == NULL ||
	    message->name_length < SEND_SOCKADDR_MIN)
		return 0;
	return shim_mark(number, message->name, message->name_length, NULL);
}

long sendmsg(int number, const struct send_message *message, int flags)
{
	uint64_t mark = send_is_decided(flags) ? send_mark(number, message) : 0;
	long args[6] = {number, (long)message, flags, [5] = (long)mark};
	struct send_message copy;

	if (gnu_get_libc_version == NULL && mark != 0) {
		copy = *message;
		copy.iov_count = (unsigned int)copy.iov_count;
		copy.control_length = (unsigned int)copy.control_length;
		if (copy.control_length != 0)
			mark = 0;
		args[1] = (long)&copy;
	}
	if (mark == 0 && send_next != NULL)
		return send_next(number, message, flags);
	return shim_result(shim_waiting_call(__NR_sendmsg, args));
}

/* The first message decides about all, as in the gate. */
int sendmmsg(int number, struct send_message *messages, unsigned int count, unsigned int flags)
{
	uint64_t mark = 0;
	long args[6] = {number, (long)messages, count, flags};

	if (gnu_get_libc_version != NULL && count > 0 && send_is_decided((int)flags))
		mark = send_mark(number, messages);
	if (mark == 0 && send_next_many != NULL)
		return send_next_many(number, messages, count, flags);
	args[5] = (long)mark;
	return (int)shim_result(shim_waiting_call(__NR_sendmmsg, args));
}
