/* SPDX-License-Identifier: Apache-2.0 */
/* The gate and its supervisor. */
#ifndef TSUGIKI_GATE_CONTROL_H
#define TSUGIKI_GATE_CONTROL_H

/* Carries out the orders of supervisors and runs the watchdog, for ever. */
_Noreturn void gate_converse(void);

#endif
