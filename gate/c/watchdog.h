/* SPDX-License-Identifier: Apache-2.0 */
/* Watches the threads, and ends the process of an idle gate. */
#ifndef TSUGIKI_GATE_WATCHDOG_H
#define TSUGIKI_GATE_WATCHDOG_H

/* Watches the threads, if it is time. Returns the milliseconds until the next time; -1: when
 * gate_wake_control is called. */
int gate_watch(void);

#endif
