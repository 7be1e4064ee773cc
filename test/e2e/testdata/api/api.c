// SPDX-License-Identifier: Apache-2.0
/*
 * A program that is written for AF_GRAFT and does what it is told.
 *
 * Each argument is a step, "VERB WORD...", on the current socket. It prints what
 * came of it, "VERB WORD...: RESULT", where a result is "ok", the name of an errno,
 * or what was asked for. The names of endpoints are all that it knows.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tsugiki/graft.h>

#include "address.h"

_Static_assert(sizeof(struct sockaddr_gr) == 18, "as in the original");
_Static_assert(sizeof(struct graft_sso_result) == 12, "packed");
_Static_assert(offsetof(struct graft_sso_trans, optval) == 12, "packed");

enum { WORDS = 6 };

static const char *step;
static char **rest; /* the steps that follow */
static int current = -1, accepted = -1, epoll = -1;
static struct sockaddr_storage sender;
static socklen_t sender_length;

static void say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	printf("%s: ", step);
	vprintf(format, args);
	putchar('\n');
	fflush(stdout);
	va_end(args);
}

static void result(long value)
{
	say("%s", value >= 0 ? "ok" : strerrorname_np(errno));
}

static void do_socket(char **word)
{
	int type = strcmp(word[1], "dgram") == 0    ? SOCK_DGRAM
		   : strcmp(word[1], "stream") == 0 ? SOCK_STREAM
						    : number(word[1]);

	for (int i = 2; i < WORDS && word[i] != NULL; i++) {
		if (strcmp(word[i], "nonblock") == 0)
			type |= SOCK_NONBLOCK;
		else if (strcmp(word[i], "cloexec") == 0)
			type |= SOCK_CLOEXEC;
		else
			break;
	}
	current = socket(AF_GRAFT, type, 0);
	result(current);
}

static void do_protocol(char **word)
{
	int fd = socket(AF_GRAFT, number(word[1]), number(word[2]));

	result(fd);
	close(fd);
}

static void do_flags(char **word)
{
	int file = fcntl(current, F_GETFL), descriptor = fcntl(current, F_GETFD);

	(void)word;
	say("%s%s", file & O_NONBLOCK ? "nonblock " : "", descriptor & FD_CLOEXEC ? "cloexec" : "");
}

static void do_bind(char **word)
{
	struct sockaddr_gr gr = {.sgr_family = AF_GRAFT};

	strncpy(gr.sgr_epname, word[1] ? word[1] : "", sizeof(gr.sgr_epname));
	result(bind(current, (struct sockaddr *)&gr, sizeof(gr)));
}

/* bind-length NAME LENGTH */
static void do_bind_length(char **word)
{
	char space[256] = {AF_GRAFT};

	strncpy(space + 2, word[1], AF_GRAFT_EPNAME_MAX);
	result(bind(current, (struct sockaddr *)space, (socklen_t)number(word[2])));
}

static void do_bind_native(char **word)
{
	struct sockaddr_storage to;
	socklen_t length = address(word[1], word[2], &to);

	result(bind(current, (struct sockaddr *)&to, length));
}

static void do_native(char **word)
{
	current = socket(number(word[1]), number(word[2]), 0);
	result(current);
}

static void do_listen(char **word)
{
	(void)word;
	result(listen(current, 16));
}

static void do_accept(char **word)
{
	(void)word;
	sender_length = sizeof(sender);
	accepted = accept(current, (struct sockaddr *)&sender, &sender_length);
	if (accepted < 0) {
		result(-1);
		return;
	}
	say("%s", text_of(&sender, sender_length));
}

static void do_take(char **word)
{
	(void)word;
	current = accepted;
	say("ok");
}

static void do_connect(char **word)
{
	struct sockaddr_storage to;
	socklen_t length = address(word[1], word[2], &to);

	result(connect(current, (struct sockaddr *)&to, length));
}

static void do_name(char **word)
{
	struct sockaddr_storage name = {0};
	socklen_t length = word[1] ? (socklen_t)number(word[1]) : sizeof(name);

	if (getsockname(current, (struct sockaddr *)&name, &length) != 0)
		result(-1);
	else
		say("%s", text_of(&name, length));
}

static void do_family(char **word)
{
	int family = 0;
	socklen_t length = sizeof(family);

	(void)word;
	if (getsockopt(current, SOL_SOCKET, SO_DOMAIN, &family, &length) != 0)
		result(-1);
	else
		say("%d", family);
}

static void do_send(char **word)
{
	result(send(current, word[1], strlen(word[1]), MSG_NOSIGNAL));
}

/* Without the end of its last line. */
static int line_of(const char *text, ssize_t length)
{
	return (int)(length > 0 && text[length - 1] == '\n' ? length - 1 : length);
}

static void do_recv(char **word)
{
	char text[128];
	ssize_t got = recv(current, text, sizeof(text), 0);

	(void)word;
	if (got < 0)
		result(-1);
	else
		say("%.*s", line_of(text, got), text);
}

static void do_sendto(char **word)
{
	struct sockaddr_storage to;
	socklen_t length = address(word[1], word[2], &to);

	result(sendto(current, word[3], strlen(word[3]), 0, (struct sockaddr *)&to, length));
}

static void do_recvfrom(char **word)
{
	char text[128];
	ssize_t got;

	(void)word;
	sender_length = sizeof(sender);
	got = recvfrom(current, text, sizeof(text), 0, (struct sockaddr *)&sender, &sender_length);
	if (got < 0)
		result(-1);
	else
		say("%s: %.*s", text_of(&sender, sender_length), line_of(text, got), text);
}

static void do_reply(char **word)
{
	result(sendto(current, word[1], strlen(word[1]), 0, (struct sockaddr *)&sender,
		      sender_length));
}

/* set LEVEL NAME VALUE */
static void do_set(char **word)
{
	int value = number(word[3]);

	result(setsockopt(current, number(word[1]), number(word[2]), &value, sizeof(value)));
}

static void do_get(char **word)
{
	int value = -1;
	/* As programs for the original do, which sets it whatever it was. */
	socklen_t length = number(word[1]) == IPPROTO_GRAFT ? 0 : sizeof(value);

	if (getsockopt(current, number(word[1]), number(word[2]), &value, &length) != 0)
		result(-1);
	else
		say("%d of %u", value, length);
}

/* transparent LEVEL NAME VALUE [BYTES OF VALUE [BYTES IN ALL]] */
static void do_transparent(char **word)
{
	char space[512] = {0};
	struct graft_sso_trans *t = (struct graft_sso_trans *)space;
	int value = number(word[3]);

	t->level = number(word[1]);
	t->optname = number(word[2]);
	t->optlen = word[4] ? (unsigned int)number(word[4]) : sizeof(value);
	memcpy(t->optval, &value, sizeof(value));
	result(setsockopt(current, IPPROTO_GRAFT, GRAFT_SO_TRANSPARENT, t,
			  word[4] && word[5] ? (socklen_t)number(word[5]) : GRAFT_SSO_TRANS_SIZE));
}

static void do_execute(char **word)
{
	(void)word;
	result(setsockopt(current, IPPROTO_GRAFT, GRAFT_SO_DELAYED_EXECUTE, NULL, 0));
}

/* results [ROOM] */
static void do_results(char **word)
{
	struct graft_sso_result r[64];
	socklen_t length = word[1] ? (socklen_t)number(word[1]) : sizeof(r);
	int status = getsockopt(current, IPPROTO_GRAFT, GRAFT_SO_DELAYED_RESULT, r, &length);
	int error = errno;
	char text[1024] = "";
	size_t at = 0;

	for (size_t i = 0; i < length / sizeof(r[0]); i++)
		at += (size_t)snprintf(text + at, sizeof(text) - at, " %d/%d=%d", r[i].level,
				       r[i].optname, r[i].ret);
	say("%s%s", status == 0 ? "ok" : strerrorname_np(error), text);
}

static void do_epoll(char **word)
{
	struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP, .data.u64 = 0x1234567890abcdef};

	(void)word;
	epoll = epoll_create1(EPOLL_CLOEXEC);
	result(epoll_ctl(epoll, EPOLL_CTL_ADD, current, &e));
}

static void do_wait(char **word)
{
	struct epoll_event e = {0};

	(void)word;
	if (epoll_wait(epoll, &e, 1, -1) == 1 && e.data.u64 == 0x1234567890abcdef)
		say("events %#x", e.events);
	else
		say("nothing");
}

static void do_poll(char **word)
{
	struct pollfd p = {.fd = current, .events = POLLIN};

	result(poll(&p, 1, number(word[1])));
}

static void do_dup(char **word)
{
	(void)word;
	current = dup(current);
	result(current);
}

static void do_close(char **word)
{
	result(close(number(word[1])));
}

static void do_use(char **word)
{
	current = number(word[1]);
	say("ok");
}

/* The child goes on, and the parent ends as it does. */
static void do_fork(char **word)
{
	int status;
	pid_t child = fork();

	(void)word;
	if (child == 0) {
		say("ok");
		return;
	}
	waitpid(child, &status, 0);
	exit(WIFEXITED(status) ? WEXITSTATUS(status) : 4);
}

static void do_exec(char **word)
{
	char *args[64] = {"api"};

	(void)word;
	for (int i = 0; i < 62 && rest[i] != NULL; i++)
		args[i + 1] = rest[i];
	say("ok");
	execv("/proc/self/exe", args);
	result(-1);
}

static void do_hold(char **word)
{
	char c;

	(void)word;
	say("ok");
	while (read(STDIN_FILENO, &c, 1) > 0)
		;
}

static const struct {
	const char *verb;
	void (*run)(char **word);
} verbs[] = {
	{"socket", do_socket},
	{"protocol", do_protocol},
	{"flags", do_flags},
	{"bind", do_bind},
	{"bind-length", do_bind_length},
	{"bind-native", do_bind_native},
	{"native", do_native},
	{"listen", do_listen},
	{"accept", do_accept},
	{"take", do_take},
	{"connect", do_connect},
	{"name", do_name},
	{"family", do_family},
	{"send", do_send},
	{"recv", do_recv},
	{"sendto", do_sendto},
	{"recvfrom", do_recvfrom},
	{"reply", do_reply},
	{"set", do_set},
	{"get", do_get},
	{"transparent", do_transparent},
	{"execute", do_execute},
	{"results", do_results},
	{"epoll", do_epoll},
	{"wait", do_wait},
	{"poll", do_poll},
	{"dup", do_dup},
	{"close", do_close},
	{"use", do_use},
	{"fork", do_fork},
	{"exec", do_exec},
	{"hold", do_hold},
};

static void run(char *text)
{
	char *word[WORDS + 1] = {NULL};
	int n = 0;

	step = strdup(text);
	for (char *w = strtok(text, " "); w != NULL && n < WORDS; w = strtok(NULL, " "))
		word[n++] = w;
	for (size_t i = 0; n > 0 && i < sizeof(verbs) / sizeof(verbs[0]); i++) {
		if (strcmp(word[0], verbs[i].verb) == 0) {
			verbs[i].run(word);
			return;
		}
	}
	fprintf(stderr, "api: unknown step \"%s\"\n", step);
	exit(2);
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		rest = &argv[i + 1];
		run(argv[i]);
	}
	return 0;
}
