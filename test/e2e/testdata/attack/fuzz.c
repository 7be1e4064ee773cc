// SPDX-License-Identifier: Apache-2.0
/*
 * Nonsense. "garbage SECONDS SEED" makes calls with random arguments from many
 * threads and only has to survive. "sequence SEED STEPS ADDR" makes one thread's
 * random but sensible-looking calls on a few descriptors and prints what each
 * returned, which depends on nothing but the kernel.
 */
#include "attack.h"

#include <pthread.h>
#include <signal.h>

#include "../../../../shim/c/marks.h"

enum { FUZZ_THREADS = 12, FUZZ_SLOTS = 6 };

static struct attack_addr fuzz_to;

static uint64_t fuzz_next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* Something that a call may take for a pointer, a length or a number. */
static long fuzz_value(uint64_t *state, char *memory)
{
	static const long odd[] = {
		0,	1,	   2,	      3,	  5,	    8,	      10,   15, 16,
		24,	28,	   110,	      127,	  128,	    129,      256,  -1, -2,
		0xffff, INT32_MAX, INT32_MIN, 0x20000000, 1L << 32, 1L << 62, -4096};
	uint64_t r = fuzz_next(state);

	if (r % 3 == 0)
		return odd[(r >> 8) % (sizeof(odd) / sizeof(odd[0]))];
	if (r % 3 == 1)
		return (long)(memory + (r >> 8) % 256);
	return (long)((r >> 8) % 16);
}

static void fuzz_fill(uint64_t *state, char *memory)
{
	uint64_t r = fuzz_next(state);

	for (int i = 0; i < 512; i += 8) {
		uint64_t word = fuzz_next(state);

		memcpy(memory + i, &word, sizeof(word));
	}
	/* Often something that looks like an address. */
	if (r % 4 != 0) {
		memcpy(memory, &fuzz_to.in6, sizeof(fuzz_to.in6));
		memory[0] = (char)(r % 4 == 1 ? AF_INET : r % 4 == 2 ? AF_INET6 : (r >> 8) % 40);
		memory[1] = 0;
	}
}

static const uint64_t fuzz_marks[] = {MARK_PASS, MARK_ASK, MARK_SHIM};

static void *fuzz_garbage(void *arg)
{
	static const long numbers[] = {SYS_socket, SYS_connect, SYS_bind,    SYS_listen,
				       SYS_sendto, SYS_sendmsg, SYS_sendmmsg};
	uint64_t state = (uint64_t)(uintptr_t)arg * 0x9e3779b97f4a7c15u + 1;
	char *memory = malloc(1024);

	while (memory != NULL) {
		uint64_t r = fuzz_next(&state);
		long number = numbers[r % 7], fd = 3 + (long)((r >> 8) % 32), args[6];

		fuzz_fill(&state, memory);
		for (int i = 0; i < 6; i++)
			args[i] = fuzz_value(&state, memory);
		if (number == SYS_socket && r % 5 != 0) {
			args[0] = r % 2 ? AF_INET : AF_INET6;
			args[1] = (r >> 16) % 2 ? SOCK_STREAM : SOCK_DGRAM;
			args[1] |= SOCK_NONBLOCK;
			args[2] = 0;
		} else if (number != SYS_socket && r % 5 != 0) {
			args[0] = fd;
			args[1] = number == SYS_listen ? args[1] : (long)memory;
		}
		/* As if it were the shim's. */
		if (r >> 32 & 1)
			args[5] = (long)fuzz_marks[(r >> 33) % 3];
		if (number == SYS_socket && (r >> 40) % 8 == 0) {
			args[0] = MARK_FAMILY;
			args[1] = (long)((r >> 43) % 4);
			args[2] = fd;
			args[5] = (long)MARK_SHIM;
		}
		fd = syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]);
		if (number == SYS_socket && fd >= 35)
			close((int)fd);
		if (r % 16 == 0)
			close(3 + (int)((r >> 24) % 32));
	}
	return NULL;
}

static int fuzz_run(int argc, char **argv)
{
	uintptr_t seed = (uintptr_t)atoi(argv[1]);
	pthread_t thread;

	fuzz_to = attack_addr(argv[argc - 1]);
	signal(SIGPIPE, SIG_IGN);
	for (uintptr_t i = 0; i < FUZZ_THREADS; i++)
		pthread_create(&thread, NULL, fuzz_garbage, (void *)(seed + i));
	sleep((unsigned int)atoi(argv[0]));
	attack_note("survived", "ok");
	_exit(0); /* some may wait in a call, as they would anywhere */
}

/* An address and a length, most of them right. */
static socklen_t fuzz_address(uint64_t *state, struct sockaddr_in6 *a, bool local)
{
	/* Not the other IP family: that would be the address 0.0.0.0 or ::, which
	 * is at home, not on the host. */
	static const sa_family_t families[] = {0, 1, 3, 4, 9, 11, 16, 99};
	uint64_t r = fuzz_next(state);
	socklen_t len = r % 3 == 0 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);

	memset(a, 0, sizeof(*a));
	if (r % 3 == 0) {
		a->sin6_family = AF_INET6;
		if (!local)
			memcpy(&a->sin6_addr.s6_addr[12], &fuzz_to.in.sin_addr, 4);
		if (!local)
			a->sin6_addr.s6_addr[10] = a->sin6_addr.s6_addr[11] = 0xff;
	} else {
		((struct sockaddr_in *)a)->sin_family = AF_INET;
		if (!local)
			((struct sockaddr_in *)a)->sin_addr = fuzz_to.in.sin_addr;
	}
	if (!local)
		a->sin6_port = fuzz_to.in.sin_port;
	if ((r >> 8) % 8 == 0)
		a->sin6_family = families[(r >> 16) % 8];
	if ((r >> 12) % 10 == 0)
		len = (socklen_t)((r >> 20) % 32);
	return len;
}

/*
 * A listener that is disconnected gives back a port that it did not ask for, on
 * the host and at home alike, but not one that it has from a move between them.
 * Nobody does that to a listener.
 */
static bool fuzz_listened[FUZZ_SLOTS];

static void fuzz_step(uint64_t *state, int *fds)
{
	static const char *const names[] = {"socket", "bind",	"connect", "listen",
					    "sendto", "unspec", "reuse",   "v6only"};
	uint64_t r = fuzz_next(state);
	int slot = (int)((r >> 8) % FUZZ_SLOTS), what = (int)(r % 8), fd = fds[slot], on = 1;
	struct sockaddr_in6 a;
	char step[64];
	socklen_t len;
	long result = 0;

	len = fuzz_address(state, &a, what == 1);
	if (what == 5 && fuzz_listened[slot])
		what = 6;
	switch (what) {
	case 0:
		if (fd >= 0)
			close(fd);
		fd = socket(r >> 16 & 1 ? AF_INET : AF_INET6,
			    (r >> 17 & 1 ? SOCK_STREAM : SOCK_DGRAM) | SOCK_CLOEXEC, 0);
		fds[slot] = fd;
		result = fd < 0 ? fd : 0;
		fuzz_listened[slot] = false;
		break;
	case 1:
		result = bind(fd, (struct sockaddr *)&a, len);
		break;
	case 2:
		result = connect(fd, (struct sockaddr *)&a, len);
		break;
	case 3:
		result = listen(fd, 2);
		fuzz_listened[slot] = result == 0;
		break;
	case 4:
		result =
			sendto(fd, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&a, len);
		break;
	case 5:
		result = attack_unspec(fd);
		break;
	default:
		result = setsockopt(fd, what == 6 ? SOL_SOCKET : IPPROTO_IPV6,
				    what == 6 ? SO_REUSEADDR : IPV6_V6ONLY, &on, sizeof(on));
	}
	snprintf(step, sizeof(step), "%s %d family %d length %d", names[what], slot, a.sin6_family,
		 (int)len);
	attack_say(step, result);
}

static int fuzz_sequence(int argc, char **argv)
{
	uint64_t state = strtoull(argv[0], NULL, 10) * 0x9e3779b97f4a7c15u + 1;
	int fds[FUZZ_SLOTS];

	fuzz_to = attack_addr(argv[argc - 1]);
	memset(fds, -1, sizeof(fds));
	for (int i = 0; i < atoi(argv[1]); i++)
		fuzz_step(&state, fds);
	return 0;
}

const struct attack_case fuzz_cases[] = {
	{"garbage", fuzz_run},
	{"sequence", fuzz_sequence},
	{0},
};
