/* SPDX-License-Identifier: Apache-2.0 */
/* The system calls of gates and of the gate pool. */
#ifndef TSUGIKI_GATE_CALLS_H
#define TSUGIKI_GATE_CALLS_H

/* These leave the process only the system calls that it needs to serve; see privilege_confine. */
void gate_confine(void);
void gatepool_confine(void);

#endif
