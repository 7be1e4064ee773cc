// SPDX-License-Identifier: Apache-2.0
/*
 * "places STEPS PART WHOLE": makes a socket for each letter of STEPS, and connects it: l to the
 * loopback, r to the remote. For a, it calls accept(2) instead, and for u on a unix socket. For
 * each, the file PART gets a letter that says in which namespace the socket was made: o in the
 * program's own, h in another. Then PART is renamed to WHOLE, and the program waits to be killed.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

static uint64_t cookie(int s)
{
	uint64_t cookie = 0;
	socklen_t length = sizeof(cookie);

	getsockopt(s, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &length);
	return cookie;
}

int main(int argc, char **argv)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9)};
	uint64_t own = cookie(socket(AF_UNIX, SOCK_STREAM, 0));
	FILE *part = argc == 4 ? fopen(argv[2], "we") : NULL;

	if (part == NULL)
		return 2;
	for (const char *step = argv[1]; *step != '\0'; step++) {
		int s = socket(*step == 'u' ? AF_UNIX : AF_INET, SOCK_STREAM, 0);

		inet_pton(AF_INET, *step == 'l' ? "127.0.0.1" : "198.51.100.2", &to.sin_addr);
		fputc(cookie(s) == own ? 'o' : 'h', part);
		if (*step == 'a' || *step == 'u')
			accept(s, NULL, NULL);
		else
			connect(s, (struct sockaddr *)&to, sizeof(to)); /* nobody listens */
		close(s);
	}
	if (fclose(part) != 0 || rename(argv[2], argv[3]) != 0)
		return 2;
	pause();
	return 0;
}
