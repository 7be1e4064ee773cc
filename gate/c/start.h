/* SPDX-License-Identifier: Apache-2.0 */
/* How a process becomes a gate. */
#ifndef TSUGIKI_GATE_START_H
#define TSUGIKI_GATE_START_H

#include "gate.h"

/* Reads the command line, and takes the files that the process was given. An error ends the
 * process. */
void gate_arguments(struct gate *g, int argc, char **argv);

/* Whether the command line is that of a pool. Then G has its options. */
bool gate_is_pool(struct gate *g, int argc, char **argv);

/* Gives up everything that a gate does not need. Any failure ends the process. */
void gate_give_up(const struct gate *g);

#endif
