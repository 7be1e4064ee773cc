// SPDX-License-Identifier: Apache-2.0
/* The command line, the table of all cases and the watchdog; see probe.h. */
#include "probe.h"

#include <arpa/inet.h>

struct probe_env env = {.fd = -1, .patience = 60000};
char **probe_argv;

static const struct probe_case *const themes[] = {
	connect_cases,	progress_cases, bind_cases,	 listen_cases,	accept_cases,
	loopback_cases, options_cases,	optargs_cases,	 epoll_cases,	epollset_cases,
	dup_cases,	inherit_cases,	threads_cases,	 storm_cases,	stream_cases,
	udp_cases,	udpmsg_cases,	udpserver_cases, badargs_cases, badfd_cases,
	kinds_cases,	own_cases,	owntcp_cases,	 ownudp_cases,	ownshare_cases,
};

#define THEMES (sizeof(themes) / sizeof(themes[0]))

/* The watchdog: a case ends itself when it has taken twice the patience. */
static void probe_hung(int sig)
{
	static const char text[] = "hung: yes\n";

	(void)sig;
	if (write(1, text, sizeof(text) - 1) < 0)
		_exit(4);
	_exit(3);
}

static void probe_list(void)
{
	for (size_t i = 0; i < THEMES; i++)
		for (const struct probe_case *c = themes[i]; c->name; c++)
			if (c->name[0] != '@')
				printf("%s %d\n", c->name, c->ports);
}

static const struct probe_case *probe_find(const char *name)
{
	for (size_t i = 0; i < THEMES; i++)
		for (const struct probe_case *c = themes[i]; c->name; c++)
			if (!strcmp(c->name, name))
				return c;
	return NULL;
}

static bool probe_set(const char *arg)
{
	static const struct {
		const char *key;
		int *value;
	} ints[] = {
		{"tcp", &env.tcp},	 {"udp", &env.udp},	      {"udp2", &env.udp2},
		{"closed", &env.closed}, {"peer", &env.peer},	      {"upeer", &env.upeer},
		{"half", &env.half},	 {"reset", &env.reset},	      {"hole", &env.hole},
		{"ctl", &env.ctl},	 {"port", &env.port},	      {"fd", &env.fd},
		{"warm", &env.warm},	 {"patience", &env.patience},
	};
	const char *value = strchr(arg, '=');
	size_t len;

	if (!value)
		return false;
	len = value++ - arg;
	if (len == 2 && !strncmp(arg, "v4", 2))
		return inet_pton(AF_INET, value, &env.v4) == 1;
	if (len == 2 && !strncmp(arg, "v6", 2))
		return inet_pton(AF_INET6, value, &env.v6) == 1;
	if (len == 3 && !strncmp(arg, "alt", 3))
		return inet_pton(AF_INET, value, &env.alt) == 1;
	for (size_t i = 0; i < sizeof(ints) / sizeof(ints[0]); i++) {
		if (strlen(ints[i].key) == len && !strncmp(arg, ints[i].key, len)) {
			*ints[i].value = atoi(value);
			return true;
		}
	}
	return false;
}

/* Makes and connects sockets of all kinds before the case does, so that a shim has
 * got to work when the case begins. */
static void probe_warm(int rounds)
{
	struct sockaddr_in v4 = {
		.sin_family = AF_INET, .sin_addr = env.v4, .sin_port = htons(env.udp)};
	struct sockaddr_in6 v6 = {
		.sin6_family = AF_INET6, .sin6_addr = env.v6, .sin6_port = htons(env.udp)};

	for (int i = 0; i < rounds; i++) {
		int made[] = {socket(AF_INET, SOCK_STREAM, 0), socket(AF_INET6, SOCK_STREAM, 0),
			      socket(AF_INET, SOCK_DGRAM, 0), socket(AF_INET6, SOCK_DGRAM, 0)};

		if (connect(made[2], (struct sockaddr *)&v4, sizeof(v4)) != 0 ||
		    connect(made[3], (struct sockaddr *)&v6, sizeof(v6)) != 0)
			puts("warm: connect failed");
		for (int k = 0; k < 4; k++)
			close(made[k]);
	}
}

int main(int argc, char **argv)
{
	const struct probe_case *c;

	probe_argv = argv;
	if (argc == 2 && !strcmp(argv[1], "list")) {
		probe_list();
		return 0;
	}
	if (argc > 4 && !strcmp(argv[1], "suite"))
		return probe_suite(argv);
	c = argc > 1 ? probe_find(argv[1]) : NULL;
	if (!c) {
		fprintf(stderr, "usage: probe list | probe suite DIR JOBS key=value... | "
				"probe CASE key=value...\n");
		return 2;
	}
	for (int i = 2; i < argc; i++) {
		if (!probe_set(argv[i])) {
			fprintf(stderr, "probe: what is %s\n", argv[i]);
			return 2;
		}
	}
	signal(SIGALRM, probe_hung);
	signal(SIGPIPE, SIG_IGN);
	alarm(1 + 2 * (env.patience / 1000));
	probe_warm(env.warm);
	c->run(c->family);
	return probe_status();
}
