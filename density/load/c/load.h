// SPDX-License-Identifier: Apache-2.0
/*
 * tsugiki-load is the program that the density study runs in its containers. It is one static
 * program: it is the same in every container and needs no libraries.
 *
 *	load stencil [-g XxYxZ] [-s SECONDS | -i ITERATIONS]	stencil.c
 *	load web -n REQUESTS [-r SEED] ADDR:PORT...		web.c
 *	load serve PORT						serve.c
 *	load at FILE COMMAND...					barrier.c
 *	load idle						load.c
 *
 * A result is one line of JSON on standard output. An error is one line on standard error. The exit
 * status is 2 for a usage error and 1 for a failure.
 */
#ifndef TSUGIKI_LOAD_H
#define TSUGIKI_LOAD_H

#include <stdint.h>

int load_stencil(int argc, char **argv);
int load_web(int argc, char **argv);
int load_serve(int argc, char **argv);
int load_at(int argc, char **argv);

void load_handle_end(void); /* SIGTERM ends the program; the kernel reaps its children */
void load_say_ready(void);

_Noreturn void load_die(const char *what); /* prints errno's text */
_Noreturn void load_usage(void);
uint64_t load_clock_ns(void);				/* CLOCK_MONOTONIC */
long load_number(const char *text, long min, long max); /* calls load_usage for others */

#endif
