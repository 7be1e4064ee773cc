// SPDX-License-Identifier: Apache-2.0
/* The entry point, the world, and what the calls share. */
#include "driver.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/un.h>

struct list world_to, world_favors, world_serves, world_ports, world_at, world_binds, world_names,
	world_links, world_peers;
int world_channel = -1;
_Atomic int driver_fds[SLOTS];

static const char *driver_id;

static _Noreturn void driver_die(const char *what)
{
	fprintf(stderr, "driver: %s: %s\n", what, strerror(errno));
	exit(3);
}

uint32_t driver_pick(struct actor *a, uint32_t below)
{
	a->rng ^= a->rng << 13;
	a->rng ^= a->rng >> 7;
	a->rng ^= a->rng << 17;
	return (uint32_t)(a->rng * 0x2545f4914f6cdd1du >> 33) % below;
}

const char *driver_of(struct actor *a, const struct list *l)
{
	uint32_t i = driver_pick(a, l->count > 0 ? (uint32_t)l->count : 1);

	return l->count > 0 ? l->text[i] : "";
}

void driver_seed(struct actor *a, const struct actor *from, const char *kind)
{
	*a = (struct actor){.rng = from->rng, .slot = from->slot, .depth = from->depth + 1};
	snprintf(a->name, sizeof(a->name), "%.10s%s%lu", from->name, kind, from->number % 100000);
	for (const char *c = kind; *c; c++)
		a->rng = a->rng * 31 + (uint64_t)*c;
	a->rng |= 1;
	driver_pick(a, 2);
}

int driver_fd(struct actor *a)
{
	if (driver_pick(a, 5) == 0)
		a->slot = (int)driver_pick(a, SLOTS);
	return driver_fds[a->slot];
}

void driver_put(struct actor *a, int fd)
{
	int old;

	if (fd < 0)
		return;
	old = __atomic_exchange_n((int *)&driver_fds[a->slot], fd, __ATOMIC_SEQ_CST);
	if (old >= 0)
		close(old);
}

/* One write, so that lines of threads and children do not mix. */
static void driver_write(char *line, int length, size_t size)
{
	if (length >= (int)size)
		length = (int)size - 1;
	line[length - 1] = '\n';
	for (ssize_t n; length > 0; line += n, length -= (int)n) {
		n = write(STDOUT_FILENO, line, (size_t)length);
		if (n <= 0)
			_exit(4); /* the test has gone */
	}
}

void driver_print(const char *format, ...)
{
	char line[400];
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	n = n < (int)sizeof(line) - 2 ? n : (int)sizeof(line) - 2;
	driver_write(line, n + 1, sizeof(line));
}

void driver_say(struct actor *a, long result, const char *format, ...)
{
	int error = errno;
	char what[300];
	va_list args;

	va_start(args, format);
	vsnprintf(what, sizeof(what), format, args);
	va_end(args);
	a->number++;
	if (result >= 0)
		driver_print("%s.%lu %s: %ld", a->name, a->number, what, result);
	else
		driver_print("%s.%lu %s: %s", a->name, a->number, what, strerrorname_np(error));
}

int driver_payload(struct actor *a, char text[PAYLOAD_MAX])
{
	return snprintf(text, PAYLOAD_MAX, "@%s.%s.%lu;", driver_id, a->name, a->number + 1);
}

static bool driver_parse(const char *text, uint16_t port, struct driver_addr *addr)
{
	char host[64];
	const char *scope = strchr(text, '%');

	memset(addr, 0, sizeof(*addr));
	snprintf(host, sizeof(host), "%.*s", (int)(scope ? scope - text : 60), text);
	if (inet_pton(AF_INET, host, &addr->in.sin_addr) == 1) {
		addr->in.sin_family = AF_INET;
		addr->in.sin_port = htons(port);
		addr->len = sizeof(addr->in);
		return true;
	}
	if (inet_pton(AF_INET6, host, &addr->in6.sin6_addr) != 1)
		return false;
	addr->in6.sin6_family = AF_INET6;
	addr->in6.sin6_port = htons(port);
	addr->in6.sin6_scope_id = scope ? (uint32_t)atoi(scope + 1) : 0;
	addr->len = sizeof(addr->in6);
	return true;
}

const char *driver_text(const struct driver_addr *addr)
{
	static _Thread_local char text[96];
	char host[64] = "?";

	if (addr->sa.sa_family == AF_INET) {
		inet_ntop(AF_INET, &addr->in.sin_addr, host, sizeof(host));
		snprintf(text, sizeof(text), "%s:%d/%d", host, ntohs(addr->in.sin_port), addr->len);
	} else if (addr->sa.sa_family == AF_INET6) {
		inet_ntop(AF_INET6, &addr->in6.sin6_addr, host, sizeof(host));
		snprintf(text, sizeof(text), "[%s]:%d/%d", host, ntohs(addr->in6.sin6_port),
			 addr->len);
	} else if (addr->sa.sa_family == GRAFT_FAMILY) {
		snprintf(text, sizeof(text), "%.*s/%d", GRAFT_NAME_MAX, addr->gr.name, addr->len);
	} else {
		snprintf(text, sizeof(text), "family %d/%d", addr->sa.sa_family, addr->len);
	}
	return text;
}

/* IPv4 in the form that an AF_INET6 socket takes. */
static void driver_map(struct driver_addr *addr)
{
	struct driver_addr mapped = {.in6 = {.sin6_family = AF_INET6}, .len = sizeof(addr->in6)};

	if (addr->sa.sa_family != AF_INET)
		return;
	mapped.in6.sin6_port = addr->in.sin_port;
	memset(&mapped.in6.sin6_addr.s6_addr[10], 0xff, 2);
	memcpy(&mapped.in6.sin6_addr.s6_addr[12], &addr->in.sin_addr, 4);
	*addr = mapped;
}

static struct driver_addr driver_odd(struct actor *a, struct driver_addr addr)
{
	switch (driver_pick(a, 24)) {
	case 0:
	case 1:
	case 2:
	case 3:
		driver_map(&addr);
		break;
	case 4:
		addr.sa.sa_family = (sa_family_t)driver_pick(a, 45);
		break;
	case 5:
		addr.len = driver_pick(a, 40);
		break;
	}
	return addr;
}

struct driver_addr driver_unspec(void)
{
	return (struct driver_addr){.sa = {.sa_family = AF_UNSPEC},
				    .len = sizeof(struct sockaddr_in)};
}

struct driver_addr driver_destination(struct actor *a)
{
	bool favor = driver_pick(a, 2) == 0 && world_favors.count > 0;
	const char *text = driver_of(a, favor ? &world_favors : &world_to);
	uint16_t port = (uint16_t)atoi(driver_of(a, &world_ports));
	struct driver_addr addr;

	if (!driver_parse(text, port, &addr))
		driver_die(text);
	return driver_odd(a, addr);
}

/* What one of the words serve=ADDR,PORT says. */
static void driver_served(const char *text, struct driver_addr *addr)
{
	const char *comma = strchr(text, ',');
	char host[64];

	snprintf(host, sizeof(host), "%.*s", (int)(comma ? comma - text : 0), text);
	if (comma == NULL || !driver_parse(host, (uint16_t)atoi(comma + 1), addr))
		driver_die(text);
}

struct driver_addr driver_own(struct actor *a)
{
	const char *text = driver_of(a, &world_at), *name = driver_of(a, &world_names);
	uint16_t port = (uint16_t)atoi(driver_of(a, &world_binds));
	const char *serve = driver_of(a, &world_serves);
	bool by_name = driver_pick(a, 4) == 0, by_rule = driver_pick(a, 2) == 0;
	struct driver_addr addr;

	if (by_name && *name) {
		addr = (struct driver_addr){.gr = {.family = GRAFT_FAMILY}, .len = sizeof(addr.gr)};
		memcpy(addr.gr.name, name, strnlen(name, GRAFT_NAME_MAX));
		return addr;
	}
	if (by_rule && *serve)
		driver_served(serve, &addr);
	else if (!driver_parse(text, port, &addr))
		driver_die(text);
	return driver_odd(a, addr);
}

/* Sockets that stay: a TCP and a UDP server of each ingress rule. */
static int driver_servers[2 * LIST_MAX], driver_server_count;

static void driver_serve(struct actor *a)
{
	struct driver_addr at;

	for (int i = 0; i < 2 * world_serves.count; i++) {
		int type = i % 2 ? SOCK_DGRAM : SOCK_STREAM;
		int fd;

		driver_served(world_serves.text[i / 2], &at);
		fd = socket(at.sa.sa_family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		driver_say(a, bind(fd, &at.sa, at.len), "serve type=%d %s", type, driver_text(&at));
		if (type == SOCK_STREAM)
			listen(fd, 8);
		driver_servers[driver_server_count++] = fd;
	}
}

static void driver_answer(struct actor *a, int fd, const struct driver_addr *to)
{
	char text[PAYLOAD_MAX];
	int n = driver_payload(a, text);

	driver_say(a, sendto(fd, text, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL, &to->sa, to->len),
		   "answer %s", driver_text(to));
}

void driver_hear(struct actor *a, int fd)
{
	char text[PAYLOAD_MAX], *end;
	struct driver_addr at = {.len = sizeof(at.in6)}, from, last = {0};
	int type = 0;
	socklen_t len = sizeof(type);
	ssize_t n = 0;

	if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) != 0 || type != SOCK_DGRAM)
		return;
	getsockname(fd, &at.sa, &at.len);
	for (int i = 0; i < 200 && (n >= 0 || errno != EAGAIN); i++) {
		from = (struct driver_addr){.len = sizeof(from.in6)};
		n = recvfrom(fd, text, sizeof(text) - 1, MSG_DONTWAIT, &from.sa, &from.len);
		if (n <= 0)
			continue; /* an error of the socket, or an empty datagram */
		text[n] = '\0';
		end = strchr(text, ';');
		if (end == NULL || strchr("@=!", text[0]) == NULL)
			continue;
		end[1] = '\0';
		driver_print("heard %s at %s", text, driver_text(&at));
		if (text[0] != '=')
			last = from;
	}
	if (last.len > 0)
		driver_answer(a, fd, &last);
}

void driver_drain(struct actor *a)
{
	for (int i = 0; i < SLOTS; i++)
		if (driver_fds[i] >= 0)
			driver_hear(a, driver_fds[i]);
	for (int i = 0; i < driver_server_count; i++)
		driver_hear(a, driver_servers[i]);
}

static const struct {
	void (*call)(struct actor *a);
	uint32_t weight;
} driver_calls[] = {
	{call_socket, 14},  {call_bind, 10},	   {call_connect, 12},	 {call_disconnect, 5},
	{call_listen, 6},   {call_accept, 4},	   {call_send, 5},	 {call_sendto, 12},
	{call_receive, 3},  {call_names, 2},	   {call_close, 1},	 {call_sendmsg, 10},
	{call_sendmmsg, 4}, {call_setsockopt, 10}, {call_getsockopt, 2}, {call_dup, 2},
	{call_pass, 2},	    {call_take, 2},	   {call_fork, 1},	 {call_threads, 1},
	{call_race, 1},	    {call_i386, 4},	   {call_flip, 1},
};

void driver_step(struct actor *a)
{
	const size_t count = sizeof(driver_calls) / sizeof(driver_calls[0]);
	uint32_t all = 0, at;
	size_t i = 0;

	for (size_t k = 0; k < count; k++)
		all += driver_calls[k].weight;
	at = driver_pick(a, all);
	while (at >= driver_calls[i].weight)
		at -= driver_calls[i++].weight;
	driver_calls[i].call(a);
}

static void driver_open(const char *path)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};

	snprintf(at.sun_path, sizeof(at.sun_path), "%s", path);
	world_channel = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (world_channel < 0 || bind(world_channel, (struct sockaddr *)&at, sizeof(at)) != 0)
		driver_die(path);
}

static void driver_word(char *word)
{
	static const struct {
		const char *key;
		struct list *list;
	} lists[] = {
		{"to", &world_to},	{"favor", &world_favors}, {"serve", &world_serves},
		{"port", &world_ports}, {"at", &world_at},	  {"bind", &world_binds},
		{"name", &world_names}, {"link", &world_links},	  {"peer", &world_peers},
	};
	char *value = strchr(word, '=');

	errno = EINVAL;
	if (value == NULL)
		driver_die(word);
	*value++ = '\0';
	if (strcmp(word, "channel") == 0) {
		driver_open(value);
		return;
	}
	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
		struct list *l = lists[i].list;

		if (strcmp(lists[i].key, word) == 0 && l->count < LIST_MAX) {
			l->text[l->count++] = value;
			return;
		}
	}
	driver_die(word);
}

/* Waits for the test's line; ends when there is none. */
static void driver_wait(const char *say)
{
	char c = 0;

	driver_print("%s", say);
	while (c != '\n')
		if (read(STDIN_FILENO, &c, 1) <= 0)
			exit(0);
}

int main(int argc, char **argv)
{
	struct actor a = {.name = "m"};
	int calls, pauses;

	if (argc < 5) {
		fprintf(stderr, "usage: driver ID SEED CALLS PAUSES WORD...\n");
		return 3;
	}
	driver_id = argv[1];
	a.rng = strtoull(argv[2], NULL, 10) * 0x9e3779b97f4a7c15u | 1;
	calls = atoi(argv[3]);
	pauses = atoi(argv[4]);
	for (int i = 5; i < argc; i++)
		driver_word(argv[i]);
	for (int i = 0; i < SLOTS; i++)
		driver_fds[i] = -1;
	signal(SIGPIPE, SIG_IGN);
	driver_wait("ready");
	for (a.slot = 0; a.slot < SLOTS; a.slot++)
		driver_put(&a, socket(a.slot % 3 ? AF_INET : AF_INET6,
				      (a.slot % 4 ? SOCK_DGRAM : SOCK_STREAM) | SOCK_NONBLOCK |
					      SOCK_CLOEXEC,
				      0));
	a.slot = 0;
	if (atoi(driver_id) % 2 == 1) /* others have the ports for their random calls */
		driver_serve(&a);
	for (int i = 1; i <= calls; i++) {
		driver_step(&a);
		if (i % (calls / (pauses + 1) + 1) == 0 || i == calls) {
			driver_wait("pause");
			driver_drain(&a);
			driver_print("drained");
		}
	}
	driver_wait("end");
	return 0;
}
