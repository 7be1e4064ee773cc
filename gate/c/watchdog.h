/* SPDX-License-Identifier: Apache-2.0 */
/* Looks after the threads, and ends the process where it may. */
#ifndef TSUGIKI_GATE_WATCHDOG_H
#define TSUGIKI_GATE_WATCHDOG_H

/* Looks after the threads, if it is time. Returns in how many milliseconds it will be
 * again; -1: when gate_wake_control is called. */
int gate_watch(void);

#endif
