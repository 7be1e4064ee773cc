// SPDX-License-Identifier: Apache-2.0
/* A library that somebody preloads who wants to see the sockets that are made. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int socket(int family, int type, int protocol);

static int other_sockets;

int socket(int family, int type, int protocol)
{
	int (*next)(int, int, int) = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");

	other_sockets++;
	return next(family, type, protocol);
}

__attribute__((destructor)) static void other_end(void)
{
	fprintf(stderr, "other: %d\n", other_sockets);
}
