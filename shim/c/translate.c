// SPDX-License-Identifier: Apache-2.0
/*
 * IPv4 programs on an IPv6-only network, without a trap for each connection.
 *
 * Theory of operation. Where IPv4 is translated, the TCP sockets that pool.c has are translated
 * ones: IPv6 sockets that the kernel programs show as AF_INET (bpf/translated.h). So nothing is
 * replaced when the program connects, and options, dup, fork and epoll need nothing. The shim only
 * writes addresses in another form:
 *
 *   connect	to a.b.c.d is one to ::ffff:a.b.c.d. The kernel programs lead a virtual
 *		address to its IPv6 host, judge the rules, and know the container's loopback
 *   getpeername	is given the mapped form of the virtual address by the kernel programs
 *   getsockname	is the container's address, unless the kernel says a mapped one
 *   accept	is the kernel's. The peer is named as by getpeername
 *
 * The shim has no table of sockets: the kernel says of each what it is. An IPv4 socket refuses an
 * IPv6 address with EAFNOSUPPORT. Where the kernel programs do not know an address, and for all
 * that is not told here, the program's own call is made with MARK_ASK, and the engine answers.
 */
#include "translate.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../policy/c/translated.h"
#include "decide.h"
#include "kernel.h"
#include "libc.h"
#include "marks.h"

#define TRANSLATE_AF_INET	   2
#define TRANSLATE_AF_INET6	   10
#define TRANSLATE_SOL_SOCKET	   1
#define TRANSLATE_SO_TYPE	   3
#define TRANSLATE_SO_DOMAIN	   39
#define TRANSLATE_DGRAM		   2
#define TRANSLATE_EAFNOSUPPORT	   97
#define TRANSLATE_ENETUNREACH	   101
#define TRANSLATE_SOCKADDR_STORAGE 128

/* Accepts of a process that are worth a trap each, before the board is asked for. */
#define TRANSLATE_PATIENCE 32

typedef int translate_name_function(int number, void *address, unsigned int *length);
typedef int translate_accept4_function(int number, void *address, unsigned int *length, int flags);

extern void *dlsym(void *handle, const char *name) SHIM_WEAK;

SHIM_EXPORT translate_name_function getsockname;
SHIM_EXPORT translate_name_function getpeername;
SHIM_EXPORT translate_name_function accept;
SHIM_EXPORT translate_accept4_function accept4;

static int translate_option(int number, int option)
{
	unsigned int length = sizeof(int);
	int value = -1;

	if (KERNEL5(__NR_getsockopt, number, TRANSLATE_SOL_SOCKET, option, &value, &length) != 0)
		return -1;
	return value;
}

/* Whether a socket is an IPv6 one for the program, too. */
static bool translate_is_ip6(int number)
{
	return translate_option(number, TRANSLATE_SO_DOMAIN) == TRANSLATE_AF_INET6;
}

static long translate_connect(int number, const void *address, unsigned int length, uint64_t mark)
{
	const long args[6] = {number, (long)address, length, [5] = (long)mark};

	return shim_waiting_call(__NR_connect, args);
}

long shim_connect_translated(int number, const void *address, unsigned int length)
{
	struct translated_in6 mapped;
	struct translated_in to;
	uint64_t mark = MARK_ASK;
	long result;

	if (length < sizeof(to) || length > TRANSLATE_SOCKADDR_STORAGE ||
	    !shim_readable(address, sizeof(to)))
		return translate_connect(number, address, length, MARK_PASS);
	__builtin_memcpy(&to, address, sizeof(to));
	if (to.family != TRANSLATE_AF_INET)
		return translate_connect(number, address, length, MARK_PASS);
	mapped = translated_to6(&to);
	/* An IPv6 socket that is no translated one takes a mapped address, and no IPv4 one. */
	if (translated_is_near(&to) && translate_is_ip6(number))
		return translate_connect(number, address, length, MARK_PASS);
	result = translate_connect(number, &mapped, sizeof(mapped), MARK_PASS);
	if (result == -TRANSLATE_ENETUNREACH && translate_is_ip6(number))
		return translate_connect(number, address, length, MARK_PASS);
	if (!translated_asks((int)-result, &to))
		return result;
	/* The kernel programs know all about UDP, and about an IPv4 socket's loopback. */
	if (result == -TRANSLATE_EAFNOSUPPORT &&
	    (to.addr[0] == 127 || translate_option(number, TRANSLATE_SO_TYPE) == TRANSLATE_DGRAM))
		mark = MARK_PASS;
	return translate_connect(number, address, length, mark);
}

static long translate_name(long call, int number, void *address, unsigned int *length,
			   uint64_t mark)
{
	return KERNEL6(call, number, address, length, 0, 0, mark);
}

/* Whether a socket with an IPv6 name is a translated one. */
static bool translate_is_translated(int number)
{
	return translate_option(number, TRANSLATE_SO_DOMAIN) == TRANSLATE_AF_INET;
}

/* Writes an IPv4 name where the kernel has written one of ROOM bytes just now. */
static void translate_put(void *address, unsigned int *length, unsigned int room,
			  const struct translated_in *name)
{
	__builtin_memcpy(address, name, room < sizeof(*name) ? room : sizeof(*name));
	*length = sizeof(*name);
}

/*
 * Writes an IPv4 name in the program's memory. The kernel writes another name there before, and no
 * more bytes: it says whether the program may.
 */
static long translate_write(long call, int number, void *address, unsigned int *length,
			    const struct translated_in *name)
{
	unsigned int room = *length < sizeof(*name) ? *length : sizeof(*name), size = room;
	long result = translate_name(call, number, address, &size, MARK_PASS);

	if (result != 0)
		return result;
	translate_put(address, length, room, name);
	return 0;
}

static long translate_answer(long call, int number, void *address, unsigned int *length)
{
	struct translated_in6 name = {0};
	struct translated_in to;
	unsigned int size = sizeof(name);
	uint64_t mark = MARK_PASS;

	/* The kernel says what is wrong with the program's pointers. */
	if (!shim_readable(length, sizeof(*length)) || *length > INT32_MAX)
		return translate_name(call, number, address, length, mark);
	if (translate_name(call, number, &name, &size, MARK_PASS) == 0 &&
	    name.family == TRANSLATE_AF_INET6 && translate_is_translated(number)) {
		if (translated_to4(&name, call == __NR_getpeername, &to))
			return translate_write(call, number, address, length, &to);
		mark = MARK_ASK;
	}
	return translate_name(call, number, address, length, mark);
}

/* Whether accept(2) is the shim's. A server may never connect, which is when the board is asked
 * for: it is then asked for after some connections. */
static bool translate_accepts(void)
{
	static atomic_uint calls;

	if (!shim_translates() && atomic_fetch_add(&calls, 1) >= TRANSLATE_PATIENCE)
		(void)shim_board();
	return shim_translates() && !shim_is_relayed();
}

/* The same functions of the next library, for where the shim has nothing to do. */
static translate_name_function *translate_next_own, *translate_next_peer, *translate_next_accept;
static translate_accept4_function *translate_next_accept4;

__attribute__((constructor)) static void translate_start(void)
{
	void *const next = (void *)-1L; /* RTLD_NEXT */

	if (dlsym == NULL)
		return;
	translate_next_own = (translate_name_function *)dlsym(next, "getsockname");
	translate_next_peer = (translate_name_function *)dlsym(next, "getpeername");
	translate_next_accept = (translate_name_function *)dlsym(next, "accept");
	translate_next_accept4 = (translate_accept4_function *)dlsym(next, "accept4");
}

int getsockname(int number, void *address, unsigned int *length)
{
	if (!shim_translates() && translate_next_own != NULL)
		return translate_next_own(number, address, length);
	return (int)shim_result(translate_answer(__NR_getsockname, number, address, length));
}

int getpeername(int number, void *address, unsigned int *length)
{
	if (!shim_translates() && translate_next_peer != NULL)
		return translate_next_peer(number, address, length);
	return (int)shim_result(translate_answer(__NR_getpeername, number, address, length));
}

/*
 * Names the peer of an accepted socket where the kernel has just written the IPv6 name, of which
 * ROOM bytes had a place. A peer that has gone by now is nobody, as for the engine.
 */
static void translate_accepted(int number, void *address, unsigned int *length, unsigned int room)
{
	struct translated_in to;
	struct translated_in6 name = {.family = TRANSLATE_AF_INET6};
	unsigned int size = sizeof(name);

	__builtin_memcpy(&name, address, room < size ? room : size);
	if (name.family != TRANSLATE_AF_INET6 || !translate_is_translated(number))
		return;
	to = translated_nobody(name.port);
	if (room < size && translate_name(__NR_getpeername, number, &name, &size, MARK_PASS) != 0) {
		translate_put(address, length, room, &to);
		return;
	}
	if (translated_to4(&name, true, &to)) {
		translate_put(address, length, room, &to);
		return;
	}
	*length = room;
	if (translate_name(__NR_getpeername, number, address, length, MARK_ASK) != 0)
		translate_put(address, length, room, &to);
}

static long translate_accept(long call, int number, void *address, unsigned int *length, int flags)
{
	const long args[6] = {number, (long)address, (long)length, flags, [5] = (long)MARK_PASS};
	bool named = address != NULL && shim_readable(length, sizeof(*length));
	unsigned int room = named ? *length : 0;
	long result = shim_waiting_call(call, args);

	if (named && result >= 0)
		translate_accepted((int)result, address, length, room);
	return result;
}

int accept(int number, void *address, unsigned int *length)
{
	if (!translate_accepts() && translate_next_accept != NULL)
		return translate_next_accept(number, address, length);
	return (int)shim_result(translate_accept(__NR_accept, number, address, length, 0));
}

int accept4(int number, void *address, unsigned int *length, int flags)
{
	if (!translate_accepts() && translate_next_accept4 != NULL)
		return translate_next_accept4(number, address, length, flags);
	return (int)shim_result(translate_accept(__NR_accept4, number, address, length, flags));
}
