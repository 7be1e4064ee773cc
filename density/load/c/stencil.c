// SPDX-License-Identifier: Apache-2.0
/*
 * Theory of operation: Jacobi's method for Poisson's equation on a box. The grid has the distance 1
 * and is zero at the faces. The computation is in single precision and uses seven points at a time:
 *
 *	u'(p) = (sum of u at p's six neighbours - f(p)) / 6
 *
 * f is -lambda s, where s is the product of half a sine wave along each axis. s is an eigenvector
 * of the discrete Laplacian, so the solution is s itself. The change in iteration k (from 0, with u
 * = 0) is known in advance:
 *
 *	u' - u = mu^k (1 - mu) s,  mu = 1 - lambda / 6
 *	sum of (u' - u)^2 = mu^2k (1 - mu)^2 (X-1)(Y-1)(Z-1) / 8
 *
 * Each iteration computes that sum, as Himeno's benchmark does. After each round of ROUND
 * iterations the sum is compared with the known one, and u starts again at 0. Otherwise u' - u
 * would shrink to the size of rounding errors. A wrong result is a failure, even if it was computed
 * fast.
 *
 * An inner point takes ten floating point operations: five additions and a subtraction, a
 * multiplication by 1/6, and three for the sum of squares.
 */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "load.h"

#define ROUND	       256
#define OPERATIONS     10
#define TOLERANCE      1e-3 /* relative; rounding makes it about 1e-5 */
#define MAX_SIDE       1024
#define MAX_ITERATIONS 1000000000
#define MAX_SECONDS    86400

struct stencil {
	int x, y, z; /* with the faces */
	float *u, *next, *f;
	float *wave_x, *wave_y, *wave_z;
	double lambda;
};

static float *stencil_wave(int n)
{
	float *wave = calloc(n, sizeof(*wave));

	if (!wave)
		load_die("allocate the grid");
	for (int i = 1; i < n - 1; i++)
		wave[i] = sin(M_PI * i / (n - 1));
	return wave;
}

static double stencil_eigenvalue(int n)
{
	return 2 - 2 * cos(M_PI / (n - 1));
}

static size_t stencil_points(const struct stencil *s)
{
	return (size_t)s->x * s->y * s->z;
}

static size_t stencil_row(const struct stencil *s, int i, int j)
{
	return ((size_t)i * s->y + j) * s->z;
}

static void stencil_make(struct stencil *s)
{
	size_t size = stencil_points(s) * sizeof(float);

	s->u = malloc(size);
	s->next = malloc(size);
	s->f = malloc(size);
	if (!s->u || !s->next || !s->f)
		load_die("allocate the grid");
	s->wave_x = stencil_wave(s->x);
	s->wave_y = stencil_wave(s->y);
	s->wave_z = stencil_wave(s->z);
	s->lambda = stencil_eigenvalue(s->x) + stencil_eigenvalue(s->y) + stencil_eigenvalue(s->z);
	for (int i = 0; i < s->x; i++)
		for (int j = 0; j < s->y; j++)
			for (int k = 0; k < s->z; k++)
				s->f[stencil_row(s, i, j) + k] =
					-s->lambda * s->wave_x[i] * s->wave_y[j] * s->wave_z[k];
}

static void stencil_free(struct stencil *s)
{
	float *all[] = {s->u, s->next, s->f, s->wave_x, s->wave_y, s->wave_z};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		free(all[i]);
}

static void stencil_reset(struct stencil *s)
{
	memset(s->u, 0, stencil_points(s) * sizeof(float));
	memset(s->next, 0, stencil_points(s) * sizeof(float)); /* the faces stay 0 */
}

/* Computes one iteration and returns the sum of the squares of the changes. */
static double stencil_iterate(struct stencil *s)
{
	const size_t y = s->z, x = (size_t)s->y * s->z;
	double sum = 0;
	float *swap;

	for (int i = 1; i < s->x - 1; i++) {
		for (int j = 1; j < s->y - 1; j++) {
			const float *restrict u = s->u + stencil_row(s, i, j);
			const float *restrict f = s->f + stencil_row(s, i, j);
			float *restrict next = s->next + stencil_row(s, i, j);
			float squares = 0;

			for (int k = 1; k < s->z - 1; k++) {
				float v = (u[k - 1] + u[k + 1] + u[k - y] + u[k + y] + u[k - x] +
					   u[k + x] - f[k]) *
					  (1.0f / 6);
				float d = v - u[k];

				next[k] = v;
				squares += d * d;
			}
			sum += squares;
		}
	}
	swap = s->u;
	s->u = s->next;
	s->next = swap;
	return sum;
}

/* Returns the known sum of squares for iteration k, see above. */
static double stencil_expected(const struct stencil *s, int k)
{
	double mu = 1 - s->lambda / 6;

	return pow(mu, 2.0 * k) * (1 - mu) * (1 - mu) * (s->x - 1.0) * (s->y - 1.0) * (s->z - 1.0) /
	       8;
}

static void stencil_check(const struct stencil *s, int k, double sum)
{
	double expected = stencil_expected(s, k);

	if (fabs(sum - expected) <= TOLERANCE * expected)
		return;
	fprintf(stderr, "load: stencil: iteration %d changed %g, must be %g\n", k, sum, expected);
	exit(1);
}

static void stencil_run(struct stencil *s, uint64_t limit_ns, long iterations)
{
	uint64_t since = load_clock_ns(), took = 0;
	double inner = (s->x - 2.0) * (s->y - 2.0) * (s->z - 2.0), sum = 0;
	long done = 0;
	int k = 0;

	while (iterations ? done < iterations : took < limit_ns) {
		k = done % ROUND;
		if (!k)
			stencil_reset(s);
		sum = stencil_iterate(s);
		done++;
		if (k == ROUND - 1)
			stencil_check(s, k, sum);
		took = load_clock_ns() - since;
	}
	stencil_check(s, k, sum);
	printf("{\"mflops\":%.3f,\"iterations\":%ld,\"seconds\":%.9f,\"residual\":%.9g,"
	       "\"expected\":%.9g}\n",
	       inner * OPERATIONS * done / (took / 1e3), done, took / 1e9, sum,
	       stencil_expected(s, k));
}

static void stencil_grid(struct stencil *s, const char *text)
{
	int *sides[] = {&s->x, &s->y, &s->z};
	char copy[32], *part, *rest = copy;

	if (strlen(text) >= sizeof(copy))
		load_usage();
	strcpy(copy, text);
	for (int i = 0; i < 3; i++) {
		part = strsep(&rest, "x");
		if (!part)
			load_usage();
		*sides[i] = load_number(part, 4, MAX_SIDE);
	}
	if (rest)
		load_usage();
}

int load_stencil(int argc, char **argv)
{
	/* Himeno's small grid. */
	struct stencil s = {.x = 64, .y = 64, .z = 128};
	long seconds = 1, iterations = 0;

	for (int option; (option = getopt(argc, argv, "g:s:i:")) != -1;) {
		switch (option) {
		case 'g':
			stencil_grid(&s, optarg);
			break;
		case 's':
			seconds = load_number(optarg, 1, MAX_SECONDS);
			break;
		case 'i':
			iterations = load_number(optarg, 1, MAX_ITERATIONS);
			break;
		default:
			load_usage();
		}
	}
	if (optind != argc)
		load_usage();
	stencil_make(&s);
	stencil_run(&s, seconds * 1000000000ULL, iterations);
	stencil_free(&s);
	return 0;
}
