/* SPDX-License-Identifier: Apache-2.0 */
/* The system calls of gates and of the gate pool. */
#ifndef TSUGIKI_GATE_CALLS_H
#define TSUGIKI_GATE_CALLS_H

#include <stdbool.h>

/* These leave the process only the system calls that it needs to serve; see privilege_confine.
 * TRANSLATES: also those for translated IPv4. */
void gate_confine(bool translates);
void gatepool_confine(void);

#endif
