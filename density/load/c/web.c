// SPDX-License-Identifier: Apache-2.0
/*
 * A web client. It makes one request at a time, each on a new connection (like ApacheBench without
 * -k), to random servers. The time of a request is from before socket(2) until the server has
 * closed. A request has failed if any step fails, or if the answer is not 200 with a body. The
 * output has the times of the successful requests, in nanoseconds and in their order.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "load.h"

#define MAX_REQUESTS 10000000
#define TIMEOUT_S    30

static const char request[] = "GET / HTTP/1.0\r\nHost: density\r\n\r\n";
static const char ok[] = " 200 ";

static struct sockaddr_in web_parse(const char *text)
{
	struct sockaddr_in addr = {.sin_family = AF_INET};
	char copy[INET_ADDRSTRLEN];
	const char *colon = strchr(text, ':');

	if (!colon || (size_t)(colon - text) >= sizeof(copy))
		load_usage();
	memcpy(copy, text, colon - text);
	copy[colon - text] = '\0';
	if (inet_pton(AF_INET, copy, &addr.sin_addr) != 1)
		load_usage();
	addr.sin_port = htons(load_number(colon + 1, 1, 65535));
	return addr;
}

/* Reads an answer to its end. Returns whether it is a correct one. */
static bool web_read(int fd)
{
	char head[1024], rest[16384], *body;
	size_t have = 0;
	ssize_t n;

	while (have < sizeof(head) - 1 && (n = read(fd, head + have, sizeof(head) - 1 - have)) > 0)
		have += n;
	head[have] = '\0';
	if (have < 12 || memcmp(head, "HTTP/1.", 7) || memcmp(head + 8, ok, sizeof(ok) - 1))
		return false;
	body = strstr(head, "\r\n\r\n");
	if (!body || !body[4])
		return false;
	while ((n = read(fd, rest, sizeof(rest))) > 0)
		;
	return n == 0;
}

static bool web_ask(const struct sockaddr_in *addr)
{
	const struct timeval limit = {.tv_sec = TIMEOUT_S};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool answered;

	if (fd < 0)
		load_die("socket");
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	answered = !connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) &&
		   send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL) ==
			   (ssize_t)sizeof(request) - 1 &&
		   web_read(fd);
	close(fd);
	return answered;
}

/* splitmix64: the same seed gives the same servers. */
static uint64_t web_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

static void web_print(const uint64_t *took, long answered, long failed, uint64_t total)
{
	printf("{\"failed\":%ld,\"seconds\":%.9f,\"took_ns\":[", failed, total / 1e9);
	for (long i = 0; i < answered; i++)
		printf("%s%llu", i ? "," : "", (unsigned long long)took[i]);
	puts("]}");
}

static void web_run(const struct sockaddr_in *addrs, int count, long requests, uint64_t seed)
{
	uint64_t *took = calloc(requests, sizeof(*took)), begin, since;
	long answered = 0, failed = 0;

	if (!took)
		load_die("allocate");
	begin = load_clock_ns();
	for (long i = 0; i < requests; i++) {
		since = load_clock_ns();
		if (web_ask(&addrs[web_random(&seed) % count]))
			took[answered++] = load_clock_ns() - since;
		else
			failed++;
	}
	web_print(took, answered, failed, load_clock_ns() - begin);
	free(took);
}

int load_web(int argc, char **argv)
{
	struct sockaddr_in *addrs;
	long requests = 0, seed = 1;
	int count;

	for (int option; (option = getopt(argc, argv, "n:r:")) != -1;) {
		switch (option) {
		case 'n':
			requests = load_number(optarg, 1, MAX_REQUESTS);
			break;
		case 'r':
			seed = load_number(optarg, 0, INT64_MAX);
			break;
		default:
			load_usage();
		}
	}
	count = argc - optind;
	if (!requests || count < 1)
		load_usage();
	addrs = calloc(count, sizeof(*addrs));
	if (!addrs)
		load_die("allocate");
	for (int i = 0; i < count; i++)
		addrs[i] = web_parse(argv[optind + i]);
	web_run(addrs, count, requests, seed);
	free(addrs);
	return 0;
}
