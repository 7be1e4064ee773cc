// SPDX-License-Identifier: Apache-2.0
/*
 * A minimal web server, so that the measured cost is the container's and not the program's. It
 * prints "ready" when it listens. It answers one request at a time.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "load.h"

#define BACKLOG	  16
#define TIMEOUT_S 5 /* for a client that sends nothing */

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
			continue; /* the client has closed */
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
		if (read(fd, request, sizeof(request)) > 0)
			send(fd, answer, sizeof(answer) - 1, MSG_NOSIGNAL);
		close(fd);
	}
}
