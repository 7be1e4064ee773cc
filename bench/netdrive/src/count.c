// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "count.h"

/* Latencies: 128 linear steps per power of two, an error of at most 0.8 %. */
#define STEP_BITS 7
#define STEPS	  (1 << STEP_BITS)
#define BUCKETS	  (64 * STEPS)

/* Since the process began, and at the beginning of the measurement. */
struct count {
	uint64_t ns, ops, bytes, lost;
	double cpu_user, cpu_sys, cpu_machine;
};
static struct count now, start;
static bool measuring;
static uint64_t end_ns; /* of the warm-up, then of the measurement */
static double measure_seconds;
static double connect_us;
static uint64_t buckets[BUCKETS];

static void count_die(const char *what)
{
	fprintf(stderr, "netdrive: %s: %s\n", what, strerror(errno));
	exit(1);
}

uint64_t count_clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static unsigned count_bucket_of(uint64_t ns)
{
	unsigned shift;

	if (ns < STEPS)
		return ns;
	shift = 63 - __builtin_clzll(ns) - STEP_BITS;
	return (shift + 1) * STEPS + ((ns >> shift) - STEPS);
}

/* The middle of a bucket. */
static double count_bucket_ns(unsigned b)
{
	unsigned shift;

	if (b < STEPS)
		return b;
	shift = b / STEPS - 1;
	return ((b % STEPS + STEPS) + 0.5) * (double)(1ULL << shift);
}

static double count_percentile_us(double p)
{
	uint64_t total = 0, seen = 0;

	for (unsigned b = 0; b < BUCKETS; b++)
		total += buckets[b];
	for (unsigned b = 0; b < BUCKETS; b++) {
		seen += buckets[b];
		if (seen && seen >= p * total)
			return count_bucket_ns(b) / 1000;
	}
	return 0;
}

/*
 * CPU time that the whole machine spent on anything, in seconds. Idle and
 * iowait are not work, steal is somebody else's, and the guest columns are
 * already in user and nice.
 */
static double count_cpu_machine(void)
{
	unsigned long long v[7] = {0};
	FILE *f = fopen("/proc/stat", "re");

	if (!f)
		count_die("open /proc/stat");
	if (fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2], &v[3], &v[4],
		   &v[5], &v[6]) != 7) {
		errno = EPROTO;
		count_die("read /proc/stat");
	}
	fclose(f);
	return (double)(v[0] + v[1] + v[2] + v[5] + v[6]) / sysconf(_SC_CLK_TCK);
}

static double count_seconds(struct timeval tv)
{
	return tv.tv_sec + tv.tv_usec / 1e6;
}

static void count_cpu(struct count *c)
{
	struct rusage ru;

	getrusage(RUSAGE_SELF, &ru);
	c->cpu_user = count_seconds(ru.ru_utime);
	c->cpu_sys = count_seconds(ru.ru_stime);
	c->cpu_machine = count_cpu_machine();
}

bool count_op(uint64_t since_ns, size_t bytes)
{
	now.ns = count_clock_ns();
	now.ops++;
	now.bytes += bytes;
	if (measuring) {
		buckets[count_bucket_of(now.ns - since_ns)]++;
		return now.ns < end_ns;
	}
	if (now.ns >= end_ns) {
		count_cpu(&now);
		now.ns = count_clock_ns(); /* reading /proc takes its time */
		start = now;
		end_ns = now.ns + measure_seconds * 1e9;
		measuring = true;
	}
	return true;
}

void count_report(const char *test, size_t size)
{
	count_cpu(&now);
	printf("{\"test\":\"%s\",\"size\":%zu,\"ops\":%llu,\"bytes\":%llu,"
	       "\"seconds\":%.6f,\"p50_us\":%.3f,\"p99_us\":%.3f,"
	       "\"cpu_user\":%.6f,\"cpu_sys\":%.6f,\"cpu_machine\":%.2f,"
	       "\"lost\":%llu,\"connect_us\":%.3f,\"total_bytes\":%llu}\n",
	       test, size, (unsigned long long)(now.ops - start.ops),
	       (unsigned long long)(now.bytes - start.bytes), (now.ns - start.ns) / 1e9,
	       count_percentile_us(0.5), count_percentile_us(0.99), now.cpu_user - start.cpu_user,
	       now.cpu_sys - start.cpu_sys, now.cpu_machine - start.cpu_machine,
	       (unsigned long long)(now.lost - start.lost), connect_us,
	       (unsigned long long)now.bytes);
}

void count_begin(double warmup, double seconds)
{
	measure_seconds = seconds;
	end_ns = count_clock_ns() + warmup * 1e9;
}

void count_connect(uint64_t since_ns)
{
	if (connect_us == 0)
		connect_us = (count_clock_ns() - since_ns) / 1e3;
}

void count_lost(void)
{
	now.lost++;
}
