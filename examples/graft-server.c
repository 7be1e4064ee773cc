// SPDX-License-Identifier: Apache-2.0
/*
 * A server that is written for AF_GRAFT: it knows no address of the host's, only
 * the name of an endpoint. It tells each client who the client is.
 *
 *	cc -o graft-server graft-server.c $(pkg-config --cflags tsugiki-graft)
 *	tsugiki run --endpoint "web type ipv4 addr 198.51.100.1 port 80 nameable" -- \
 *		./graft-server web
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <tsugiki/graft.h>

static int serve_at(const char *endpoint)
{
	struct sockaddr_gr gr = {.sgr_family = AF_GRAFT};
	int one = 1, s = socket(AF_GRAFT, SOCK_STREAM, 0);

	if (s < 0)
		return -1;
	strncpy(gr.sgr_epname, endpoint, sizeof(gr.sgr_epname));
	/* As before any bind(): it is carried over to the host socket. */
	if (setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
	    bind(s, (struct sockaddr *)&gr, sizeof(gr)) != 0 || listen(s, SOMAXCONN) != 0) {
		close(s);
		return -1;
	}
	return s;
}

/* Peers are of the endpoint's family. */
static const char *name_of(const struct sockaddr_storage *peer, char *text, socklen_t size)
{
	if (peer->ss_family == AF_INET)
		return inet_ntop(AF_INET, &((const struct sockaddr_in *)peer)->sin_addr, text,
				 size);
	if (peer->ss_family == AF_INET6)
		return inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)peer)->sin6_addr, text,
				 size);
	return "local";
}

int main(int argc, char **argv)
{
	int s;

	if (argc != 2) {
		fprintf(stderr, "usage: graft-server ENDPOINT\n");
		return 2;
	}
	s = serve_at(argv[1]);
	if (s < 0) {
		perror(argv[1]);
		return 1;
	}
	for (;;) {
		struct sockaddr_storage peer;
		socklen_t length = sizeof(peer);
		char text[INET6_ADDRSTRLEN];
		int client = accept(s, (struct sockaddr *)&peer, &length);

		if (client < 0)
			continue;
		dprintf(client, "you are %s\n", name_of(&peer, text, sizeof(text)));
		close(client);
	}
}
