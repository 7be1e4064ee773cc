// SPDX-License-Identifier: Apache-2.0
/*
 * The least that is a web server: what a container costs is then not what its
 * program costs. It says "ready" when it listens, and answers one after the other.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "load.h"

#define BACKLOG	  16
#define TIMEOUT_S 5 /* for a client that says nothing */

static const char answer[] = "HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nok\n";

static int serve_listen(uint16_t port)
{
	const struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(port)};
	const int yes = 1;
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0)
		load_die("socket");
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
	if (bind(fd, (const struct sockaddr *)&addr, sizeof(addr)) < 0)
		load_die("bind");
	if (listen(fd, BACKLOG) < 0)
		load_die("listen");
	return fd;
}

int load_serve(int argc, char **argv)
{
	const struct timeval limit = {.tv_sec = TIMEOUT_S};
	char request[4096];
	int listener, fd;

	if (argc != 2)
		load_usage();
	listener = serve_listen(load_number(argv[1], 1, 65535));
	load_handle_end();
	load_say_ready();
	for (;;) {
		fd = accept(listener, NULL, NULL);
		if (fd < 0)
			continue; /* a client that went away */
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
		if (read(fd, request, sizeof(request)) > 0)
			send(fd, answer, sizeof(answer) - 1, MSG_NOSIGNAL);
		close(fd);
	}
}
