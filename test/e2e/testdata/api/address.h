/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses as words: from those of a step, and for what is printed.
 */
#ifndef API_ADDRESS_H
#define API_ADDRESS_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <tsugiki/graft.h>

static int number(const char *word)
{
	return word == NULL ? 0 : (int)strtol(word, NULL, 0);
}

/* ADDR PORT, or a path. */
static socklen_t address(const char *addr, const char *port, struct sockaddr_storage *to)
{
	struct sockaddr_in *in = (struct sockaddr_in *)to;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)to;
	struct sockaddr_un *un = (struct sockaddr_un *)to;

	memset(to, 0, sizeof(*to));
	if (addr[0] == '/' || addr[0] == '@') {
		un->sun_family = AF_UNIX;
		strncpy(un->sun_path, addr, sizeof(un->sun_path) - 1);
		if (addr[0] == '@')
			un->sun_path[0] = '\0';
		return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(addr));
	}
	if (inet_pton(AF_INET, addr, &in->sin_addr) == 1) {
		in->sin_family = AF_INET;
		in->sin_port = htons((uint16_t)number(port));
		return sizeof(*in);
	}
	if (inet_pton(AF_INET6, addr, &in6->sin6_addr) != 1) {
		fprintf(stderr, "api: %s is no address\n", addr);
		exit(3);
	}
	in6->sin6_family = AF_INET6;
	in6->sin6_port = htons((uint16_t)number(port));
	return sizeof(*in6);
}

static const char *text_of(const struct sockaddr_storage *a, socklen_t length)
{
	static char text[160];
	char addr[INET6_ADDRSTRLEN];
	const struct sockaddr_in *in = (const struct sockaddr_in *)a;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)a;
	const struct sockaddr_un *un = (const struct sockaddr_un *)a;
	const struct sockaddr_gr *gr = (const struct sockaddr_gr *)a;

	if (length == 0)
		return "nothing";
	switch (a->ss_family) {
	case AF_INET:
		inet_ntop(AF_INET, &in->sin_addr, addr, sizeof(addr));
		snprintf(text, sizeof(text), "inet %s %d", addr, ntohs(in->sin_port));
		break;
	case AF_INET6:
		inet_ntop(AF_INET6, &in6->sin6_addr, addr, sizeof(addr));
		snprintf(text, sizeof(text), "inet6 %s %d", addr, ntohs(in6->sin6_port));
		break;
	case AF_UNIX:
		snprintf(text, sizeof(text), "unix %.*s",
			 (int)(length - offsetof(struct sockaddr_un, sun_path)), un->sun_path);
		break;
	case AF_GRAFT:
		snprintf(text, sizeof(text), "graft '%.16s' %u", gr->sgr_epname, length);
		break;
	default:
		snprintf(text, sizeof(text), "family %d", a->ss_family);
	}
	return text;
}

#endif
