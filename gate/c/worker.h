/* SPDX-License-Identifier: Apache-2.0 */
/* What the gate's threads and what they do for a notification share. */
#ifndef TSUGIKI_GATE_WORKER_H
#define TSUGIKI_GATE_WORKER_H

#include <linux/audit.h>
#include <linux/seccomp.h>
#include <stdatomic.h>

#include "gate.h"

#if defined(__x86_64__)
#define GATE_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define GATE_ARCH AUDIT_ARCH_AARCH64
#else
#error "the system calls of this architecture are not known here"
#endif
#define GATE_X32 0x40000000

/* Who has answered a notification. */
enum gate_outcome {
	GATE_BY_NOBODY, /* the caller is gone */
	GATE_BY_GATE,
	GATE_BY_GATE_REFUSED,
	GATE_BY_SUPERVISOR, /* or will */
};

/* What a thread keeps from one notification to the next. */
struct gate_worker {
	/* Counts up when a notification is picked up and again when it has been
	 * handled: odd while at work. */
	atomic_uint turn;
	/* Between the watchdog and the thread: */
	atomic_bool given_up; /* another has taken over; end after this one */
	atomic_bool used;     /* this slot is some thread's */
	atomic_int id;	      /* of that thread, once it runs */
	atomic_bool waits;    /* for room: another thread would only wait too */
	unsigned int seen;    /* turn at the last tick; the watchdog's own */

	struct seccomp_notif n;
	struct gate_ask ask; /* what the supervisor is asked, if it is */
	enum gate_outcome outcome;
	/* The last caller's pidfd: it refers to that thread for good, so that a
	 * reused id fails instead of reaching somebody else. */
	uint32_t thread;
	int pidfd;
};

extern struct gate gate;

/* Answers the notification in W, or asks the supervisor to. */
void gate_handle(struct gate_worker *w);

void gate_answer(struct gate_worker *w, int64_t value);
void gate_proceed(struct gate_worker *w);

/* Handles ioctl(2), of any ABI. */
void gate_ioctl(struct gate_worker *w);

/* Handles a call of another ABI than the machine's own. */
void gate_foreign(struct gate_worker *w);

/* Whether a call is one by which a program gets into another network namespace. */
bool gate_is_leaving(const struct seccomp_notif *n);

/* Whether the caller still waits: else what was got by its id was another's. */
bool gate_valid(const struct seccomp_notif *n);
bool gate_valid_id(uint64_t id);

/* Reads the caller's memory; returns how many bytes there were before the first that
 * is not mapped. */
size_t gate_read(const struct seccomp_notif *n, uint64_t from, void *to, size_t size);

/* The namespace of a descriptor of the caller; 0 if it is no socket. BOUND, unless
 * it is NULL, is set to whether it has a port. */
uint64_t gate_netns_of(struct gate_worker *w, int number, bool *bound);

/* A duplicate of a descriptor of the caller, or -1. */
int gate_file_of(struct gate_worker *w, int number);

/* Makes a socket. Fails as socket(2), and with EXDEV if the kernel programs do not
 * police it: then somebody has moved the gate out of its cgroup. */
int gate_make(const struct gate_kind *kind);

/* Answers an order of sockets with how many were sent; 0 if there are none. */
unsigned int gate_batch(struct gate_worker *w);

/* Whether one that was sent has not been taken yet. */
bool gate_batch_is_under_way(void);

/* Has the supervisor answer the notification in W: this one, or the next. */
void gate_pass(struct gate_worker *w);

/* Tells the supervisor of what the gate answers itself, if it wants to know. */
void gate_report(struct gate_worker *w);

/* For the thread that talks with the supervisor. */
void gate_asks_start(bool supervised);
int gate_asks_event(void); /* readable when there is something to do */
void gate_wake_control(void);
bool gate_asks_wait(void); /* whether there is */
void gate_asks_send(void);

/* Greets the supervisor that has started us. */
void gate_greet(void);

/* Tell a supervisor what was counted on a board, and that the container has ended; fail as
 * send(2). */
bool gate_say_stats(struct board *b, int to, uint64_t tag, int flags);
bool gate_say_bye(struct board *b, int to, int flags);

/* Makes FILE the supervisor's end, and gives it the listener and the program's namespace. */
bool gate_supervisor_came(int file);
void gate_supervisor_left(void);
bool gate_supervisor_is_there(void);

/* Sends a message, with files; fails as sendmsg(2). */
bool gate_send_files(int to, const void *bytes, size_t length, const int *files, unsigned int count,
		     int flags);

/* What came in a message: those of its files that there is room for, the others are closed. */
struct gate_message {
	unsigned char bytes[sizeof(struct gate_admission) + 1];
	size_t length;
	int files[GATE_ADMISSION_FILES];
	unsigned int count;
	bool cut; /* files are gone, for we may have no more open */
};

/* Receives one without waiting. Returns false if there is none. */
bool gate_receive(int from, struct gate_message *m);
void gate_close_files(struct gate_message *m);

/* Whether one of EVENTS of poll(2) is there. */
bool gate_has(int file, short events);

/* Says good-bye and ends the process: no program is left. */
_Noreturn void gate_end(void);

/* Talks with the supervisor, and looks after the threads, for ever. */
_Noreturn void gate_converse(void);

/* Ends the process for as long as there is nothing to do; returns if there is. */
void gate_rest(void);

/* Has HAND_OVER carried out and ends the process; returns if a call waits for an answer of
 * the supervisor's, or if HAND_OVER fails. */
void gate_asks_rest(bool (*hand_over)(bool supervised));

/* Ends the one thread that serves, if it has nothing to do; false if it had. */
bool gate_stop_thread(void);

/* Counts what has become of the notification in W, NANOSECONDS after it came. */
void gate_count(const struct gate_worker *w, uint64_t nanoseconds);
#define GATE_COUNT(field, n) gate_count_at(offsetof(struct gate_counters, field), n)
void gate_count_at(size_t offset, uint64_t n);
void gate_read_counters(struct board *b, struct gate_counters *to);

/* Starts the first thread that serves. */
void gate_start_serving(void);

/* Looks after the threads, if it is time. Returns in how many milliseconds it will be
 * again; -1: when gate_wake_control is called. */
int gate_watch(void);

#endif
