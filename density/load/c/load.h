// SPDX-License-Identifier: Apache-2.0
/*
 * load: what the density study runs in its containers. One static program, so
 * that it is the same in every container and brings no libraries along.
 *
 *	load stencil [-g XxYxZ] [-s SECONDS | -i ITERATIONS]	stencil.c
 *	load web -n REQUESTS [-r SEED] ADDR:PORT...		web.c
 *	load serve PORT						serve.c
 *	load at FILE COMMAND...					barrier.c
 *	load idle						load.c
 *
 * Results are one line of JSON on standard output, errors one line on standard
 * error. The exit status is 2 for usage and 1 for failure.
 */
#ifndef TSUGIKI_LOAD_H
#define TSUGIKI_LOAD_H

#include <stdint.h>

int load_stencil(int argc, char **argv);
int load_web(int argc, char **argv);
int load_serve(int argc, char **argv);
int load_at(int argc, char **argv);

void load_handle_end(void); /* SIGTERM ends, children are not waited for */
void load_say_ready(void);

_Noreturn void load_die(const char *what); /* with errno's text */
_Noreturn void load_usage(void);
uint64_t load_clock_ns(void);				/* CLOCK_MONOTONIC */
long load_number(const char *text, long min, long max); /* or ends by load_usage */

#endif
