// SPDX-License-Identifier: Apache-2.0
/*
 * The probe: a program that uses sockets in every way that real programs do,
 * one way per case, and prints what it sees.
 *
 * Theory of operation: "probe list" names the cases; "probe CASE key=value..."
 * runs one; "probe suite" runs many (suite.c). A case prints lines "step: result". What it prints
 * depends on the kernel's socket semantics and on nothing else: no times, process ids, file
 * descriptor numbers or ephemeral ports, but relations between them. So the
 * output of a case run bare and run under any interception must be equal byte
 * by byte; where it is not, a program could notice.
 *
 * Besides printing, a step may know what Linux answers (probe_want,
 * probe_check). A step that gets another answer makes the exit status 1, so
 * that a case cannot be "equal" because both runs were broken alike.
 */
#ifndef PROBE_H
#define PROBE_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the peer (another machine) offers, and what the probe may bind. */
struct probe_env {
	struct in_addr v4;
	struct in6_addr v6;
	struct in_addr alt; /* the peer too, on a network that rules may not name */
	int tcp;	    /* echoes a stream */
	int udp;	    /* echoes datagrams */
	int udp2;	    /* echoes datagrams too */
	int closed;	    /* nobody there: neither TCP nor UDP */
	int peer;	    /* sends "ADDR PORT\n" of the client it sees, then closes */
	int upeer;	    /* answers a datagram with "ADDR PORT" of its sender */
	int half;	    /* sends "half", closes its sending side, reads to the end */
	int reset;	    /* resets the connection after the first byte */
	int hole;	    /* never answers a SYN: its accept queue is full */
	int ctl;	    /* makes the peer dial, see probe_dial and probe_gate */
	int port;	    /* first of the ports that this case may listen on */
	int fd;		    /* the descriptor that a re-executed probe inherits */
	int warm;	    /* rounds of sockets before the case */
	int patience;	    /* ms, see PROBE_PATIENCE */
};

struct probe_case {
	const char *name; /* the names that start with '@' are not listed */
	void (*run)(int family);
	int family; /* what run is called with */
	int ports;  /* how many ports from env.port on it binds */
};

extern struct probe_env env;
extern char **probe_argv;

/* The tables of the themes; each ends with a case without a name. */
extern const struct probe_case accept_cases[];
extern const struct probe_case badargs_cases[];
extern const struct probe_case badfd_cases[];
extern const struct probe_case bind_cases[];
extern const struct probe_case connect_cases[];
extern const struct probe_case dup_cases[];
extern const struct probe_case epoll_cases[];
extern const struct probe_case epollset_cases[];
extern const struct probe_case inherit_cases[];
extern const struct probe_case kinds_cases[];
extern const struct probe_case listen_cases[];
extern const struct probe_case loopback_cases[];
extern const struct probe_case options_cases[];
extern const struct probe_case optargs_cases[];
extern const struct probe_case own_cases[];
extern const struct probe_case ownshare_cases[];
extern const struct probe_case owntcp_cases[];
extern const struct probe_case ownudp_cases[];
extern const struct probe_case progress_cases[];
extern const struct probe_case storm_cases[];
extern const struct probe_case stream_cases[];
extern const struct probe_case threads_cases[];
extern const struct probe_case udp_cases[];
extern const struct probe_case udpmsg_cases[];
extern const struct probe_case udpserver_cases[];

/* say.c: what is printed. All keep errno. */
void probe_line(const char *step, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
long probe_rc(const char *step, long rc);
long probe_want(const char *step, long rc, int err);
int probe_fd(const char *step, int fd);
bool probe_check(const char *step, bool ok);
void probe_die(const char *step) __attribute__((noreturn));
const char *probe_errno(int err);
const char *probe_events(unsigned int events);
void probe_fail(void);
int probe_status(void);

/* net.c: addresses and conversations. */
struct probe_addr {
	union {
		struct sockaddr sa;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
		struct sockaddr_storage ss;
	};
	socklen_t len;
};

struct probe_addr probe_peer(int family, int port);
struct probe_addr probe_mapped(int port);
struct probe_addr probe_alt(int port);
struct probe_addr probe_any(int family, int port);
struct probe_addr probe_loopback(int family, int port);
struct probe_addr probe_text(int family, const char *host, int port);
struct probe_addr probe_unspec(void);
int probe_port(const struct probe_addr *a);
int probe_private(int n);
bool probe_same(const struct probe_addr *a, const struct probe_addr *b);

int probe_socket(int family, int type);
int probe_connect(int fd, struct probe_addr a);
int probe_bind(int fd, struct probe_addr a);
struct probe_addr probe_local(int fd);
struct probe_addr probe_remote(int fd);
void probe_name(const char *step, const struct probe_addr *a);
void probe_names(const char *when, int fd);
void probe_host(const char *step, const struct probe_addr *a);

/* How long to wait for what has to come, in ms: for hangs only. A case may take twice that
 * (probe_hung), and whoever waits for a case waits longer still. */
#define PROBE_PATIENCE env.patience

int probe_poll(int fd, int events, int ms);
ssize_t probe_read(int fd, char *buf, size_t len);
void probe_echo(const char *step, int fd, const char *text);
void probe_serve(const char *step, int fd, int client, const char *text);
int probe_echo_client(int family);
int probe_listener(struct probe_addr a);
int probe_accept(const char *step, int l, struct probe_addr *from);
void probe_abort(int fd);
void probe_pair(int family, int pair[2]);
struct probe_addr probe_seen(int fd);

/* peer.c: what the peer is asked to do. */
const char *probe_dial(int family, int port);
int probe_dial_udp(int family, int port, const char *text);
const char *probe_heard(int asked);
const char *probe_heard_by_now(int asked);
int probe_gate(int family, int *port);
void probe_gate_open(int gate);

/* suite.c: many cases, each in a process of its own; the exit status. */
int probe_suite(char **argv);

/* proc.c: children, signals, waiting. */
pid_t probe_fork(void);
void probe_wait(const char *step, pid_t pid);
pid_t probe_ticker(int flags);
void probe_ticker_stop(pid_t pid);
bool probe_ticked(void);
void probe_ticks(int n);
void probe_sleep(int ms);
long probe_now(void);
void probe_exec(const char *name, int fd) __attribute__((noreturn));
char **probe_exec_argv(const char *name, int fd);
void probe_send_fd(int via, int fd);
int probe_recv_fd(int via);

#endif
