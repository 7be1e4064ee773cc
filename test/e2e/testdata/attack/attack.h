// SPDX-License-Identifier: Apache-2.0
/*
 * The attack: a program that tries what a grafted program must not be able to
 * do, and what it may do in the worst of ways.
 *
 * Theory of operation: "attack CASE ARGUMENT..." runs one case, which prints
 * lines "step: result", where a result is "ok" or the name of an errno. Whether
 * an attack has worked is not for this program to say: the tests watch the
 * places that it must not reach. What gets somewhere carries the step's name.
 */
#ifndef ATTACK_H
#define ATTACK_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

struct attack_case {
	const char *name;
	int (*run)(int argc, char **argv); /* what follows the name */
};

/* The cases of each file; each table ends with one without a name. */
extern const struct attack_case abi_cases[];
extern const struct attack_case calls_cases[];
extern const struct attack_case escape_cases[];
extern const struct attack_case forks_cases[];
extern const struct attack_case fuzz_cases[];
extern const struct attack_case graft_cases[];
extern const struct attack_case interfaces_cases[];
extern const struct attack_case listen_cases[];
extern const struct attack_case load_cases[];
extern const struct attack_case loop_cases[];
extern const struct attack_case loopload_cases[];
extern const struct attack_case marks_cases[];
extern const struct attack_case numbers_cases[];
extern const struct attack_case options_cases[];
extern const struct attack_case packets_cases[];
extern const struct attack_case pairs_cases[];
extern const struct attack_case pinned_cases[];
extern const struct attack_case race_cases[];
extern const struct attack_case reach_cases[];
extern const struct attack_case stuck_cases[];
extern const struct attack_case udp_cases[];

struct attack_addr {
	union {
		struct sockaddr sa;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
	};
	socklen_t len;
	const char *text; /* as it was written */
};

/* ADDR:PORT, [ADDR]:PORT or [ADDR%INDEX]:PORT; ends the program otherwise. */
struct attack_addr attack_addr(const char *text);

/* Prints a result, negative as errno says. Returns it. */
long attack_say(const char *step, long result);
void attack_note(const char *step, const char *format, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void attack_die(const char *what);
long attack_need(const char *what, long result); /* dies if negative */

/* Whether SECONDS have passed since the first call. */
bool attack_late(int seconds);

/* Waits until the test closes standard input. */
void attack_hold(void);

/* Keeps the thread on the CPU that it runs on. */
void attack_pin(void);

/* Makes so many sockets of all kinds that a shim will have made some in advance. */
void attack_warm(void);

/* How many sockets there are where it parks them. */
int attack_parked(void);

/*
 * A socket that may broadcast. It has no limit of time: an allowed connection takes as long as
 * the machine needs, a forbidden one is refused at once, and the test ends what hangs.
 */
int attack_socket(int family, int type);
uint64_t attack_netns(int fd);	/* SO_NETNS_COOKIE */
uint64_t attack_cookie(int fd); /* SO_COOKIE; 0 if it is no socket */
bool attack_listens(int fd);
int attack_unspec(int fd); /* connect(AF_UNSPEC) */
void attack_send_fd(int channel, int fd);
int attack_receive_fd(int channel);

/*
 * Maps a page of a file that never gives what is read of it, by a device like /dev/fuse.
 * Returns the descriptor that it is served by. To be called before there are threads.
 */
int attack_slow_file(const char *device, void **page);

/* The processes that tsugiki has put next to the program's cgroup. */
int attack_helpers(pid_t *pids, int max);

/* A system call of the i386 ABI; -1 and ENOSYS where there is none. Pointers
 * have to lie in what attack_low returned. */
long attack_i386(long number, long a, long b, long c, long d, long e);
void *attack_low(void);

#endif
