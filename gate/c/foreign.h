/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of other ABIs than the machine's own. */
#ifndef TSUGIKI_GATE_FOREIGN_H
#define TSUGIKI_GATE_FOREIGN_H

#include <linux/audit.h>
#include <stdbool.h>

#include "worker.h"

#if defined(__x86_64__)
#define GATE_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define GATE_ARCH AUDIT_ARCH_AARCH64
#else
#error "the system calls of this architecture are not known here"
#endif
#define GATE_X32 0x40000000

/* Handles a call of another ABI than the machine's own. */
void gate_foreign(struct gate_worker *w);

/* Whether a call is one by which a program gets into another network namespace. */
bool gate_is_leaving(const struct seccomp_notif *n);

#endif
