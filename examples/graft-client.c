// SPDX-License-Identifier: Apache-2.0
/*
 * A client that is written for AF_GRAFT: it connects from an endpoint of the host
 * that it names, or else from the one named default-source, and prints what it is
 * told.
 *
 *	cc -o graft-client graft-client.c $(pkg-config --cflags tsugiki-graft)
 *	tsugiki run --endpoint "out type ipv4 addr 198.51.100.1 port dynamic nameable" -- \
 *		./graft-client 198.51.100.2 80 out
 */
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <tsugiki/graft.h>

static int connect_from(const char *endpoint, const struct addrinfo *to)
{
	struct sockaddr_gr gr = {.sgr_family = AF_GRAFT};
	int s = socket(AF_GRAFT, SOCK_STREAM, 0);

	if (s < 0)
		return -1;
	if (endpoint != NULL) {
		strncpy(gr.sgr_epname, endpoint, sizeof(gr.sgr_epname));
		if (bind(s, (struct sockaddr *)&gr, sizeof(gr)) != 0)
			goto failed;
	}
	if (connect(s, to->ai_addr, to->ai_addrlen) == 0)
		return s;
failed:
	close(s);
	return -1;
}

int main(int argc, char **argv)
{
	const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
				       .ai_socktype = SOCK_STREAM};
	struct addrinfo *to;
	char text[512];
	ssize_t got;
	int s;

	if (argc != 3 && argc != 4) {
		fprintf(stderr, "usage: graft-client ADDRESS PORT [ENDPOINT]\n");
		return 2;
	}
	if (getaddrinfo(argv[1], argv[2], &hints, &to) != 0) {
		fprintf(stderr, "graft-client: %s and %s are no address and port\n", argv[1],
			argv[2]);
		return 2;
	}
	s = connect_from(argc == 4 ? argv[3] : NULL, to);
	freeaddrinfo(to);
	if (s < 0) {
		perror("graft-client");
		return 1;
	}
	while ((got = read(s, text, sizeof(text))) > 0)
		fwrite(text, 1, (size_t)got, stdout);
	return got < 0;
}
