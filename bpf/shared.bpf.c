/* clang-format off */
//go:build ignore
/* clang-format on */

// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * For whom a daemon works that works for many containers.
 *
 * Theory of operation. The end of a system call and a switch of threads are events:
 * at each, the time since the event before is added to somebody's sum. A system call
 * on a file (a container's pipe, its log) is work for the owner of that file, and so
 * is what the thread does after it, up to the next event. What comes after a wait is
 * work for nobody yet: a thread of a Go program takes up whatever goroutine can run.
 * It is decided by the next call on a file, or by the next wait, which makes it
 * overhead. A call that had nothing to do (EAGAIN) is like a wait.
 *
 *	a system call ends		time since the last event	time after it
 *	that begins work (read)		as before, undecided: owner's	the owner's
 *	that ends work (write)		the owner's			the owner's
 *	  likewise, on nobody's file	as before, undecided: nobody's	nobody's
 *	with EAGAIN, epoll, poll	as before, undecided: overhead	undecided
 *	any other that has slept	as before, undecided: overhead	undecided
 *	any other			nothing happens
 *	a thread sleeps			as before			undecided
 *
 * Calls are seen only where they end, because every event costs everybody. The
 * kernel's part of a call is so told to whom the time before it is told.
 *
 * The times are of a clock that runs on while a thread does not: it is stopped at
 * every switch. The sums are weights: user space divides the exact CPU clock of
 * the process by them.
 *
 * A thread that computes for long without a call or a switch is accounted late. Each
 * CPU tells meanwhile whose the open time is that it spends: see running.
 *
 * Everybody's system calls come by here while somebody is watched, so strangers
 * are turned away by one bit.
 *
 * io_uring does its work without system calls of the daemon's threads: it is
 * divided as the rest is. The numbers of system calls are of the native ABI.
 *
 * Oldest kernel: 5.15.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "task.h"

#define CALLS_MAX     512
#define FILES_MAX     16384
#define PROCESSES_MAX 16
#define SLOTS_MAX     2048
#define TGID_BITS     16384

/* What a word of running has, from its lowest bit on: a slot, a watch, a time. */
enum running_word {
	RUNNING_SLOT_BITS = 11,
	RUNNING_WATCH_BITS = 13,
	RUNNING_TIME_BITS = 40,
	RUNNING_UNIT_BITS = 10, /* the unit of the time is 1024 ns */
	RUNNING_STRIDE = 8,	/* words of a CPU: a cache line */
};
const enum running_word *unused_running __attribute__((unused));

#define EAGAIN 11

/* What a system call is to us, and which argument is a file. */
enum call_kind {
	CALL_NONE,
	CALL_READ,    /* the first; work begins */
	CALL_WRITE,   /* the first; work ends */
	CALL_WRITE_2, /* the first or the second */
	CALL_WRITE_3, /* the first or the third */
	CALL_WAIT,
};

/* Slots that are not owners'. */
enum owner_slot {
	SLOT_OWN,      /* files of the daemon itself */
	SLOT_OVERHEAD, /* whatever had to be done for all */
	SLOT_FIRST,
	SLOT_UNDECIDED = 0xffffffff,
};

struct owned_file {
	__u64 ino;
	__u32 dev;
	__u32 pad;
};

struct watched_process {
	__u32 row;   /* of its sums */
	__u32 watch; /* which watch this is of all: what an earlier one left is stale */
};

struct thread {
	__u64 since;	       /* when its time was last accounted, or when it was let run */
	__u64 undecided;       /* ns */
	enum owner_slot owner; /* that its time is for now */
	__u32 watch;	       /* of its process, when this was true */
	bool slept;	       /* since the last event */
};

/* Set by user space before the programs are loaded. */
const volatile enum call_kind call_by_number[CALLS_MAX];

/* One bit for each watched process, shared by those whose numbers are alike. */
__u64 watched_bits[TGID_BITS / 64];

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PROCESSES_MAX);
	__type(key, __u32);
	__type(value, struct watched_process);
} process_by_tgid SEC(".maps");

/* Only user space adds to it, so nothing is allocated in a program. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, FILES_MAX);
	__type(key, struct owned_file);
	__type(value, __u32);
} slot_by_file SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} thread_by_task SEC(".maps");

/* ns by row and slot; mapped by user space, which reads it without a call. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, PROCESSES_MAX *SLOTS_MAX);
	__type(key, __u32);
	__type(value, __u64);
} spent SEC(".maps");

/*
 * What each CPU does now: whose the time is of the watched thread that it runs, in
 * which watch, and since when. 0 if that is undecided, or if it runs none. One word
 * says all, so that user space, which maps it, reads no half of one. What a watch
 * that has ended leaves there is known by the number of the watch.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, RUNNING_STRIDE); /* of one CPU: user space knows how many there are */
	__type(key, __u32);
	__type(value, __u64);
} running SEC(".maps");

static __always_inline struct watched_process *watched(__u32 tgid)
{
	__u32 bit = tgid % TGID_BITS;

	if (!(watched_bits[bit / 64] & 1ULL << bit % 64))
		return NULL;
	return bpf_map_lookup_elem(&process_by_tgid, &tgid);
}

static __always_inline void charge(struct watched_process *p, __u32 slot, __u64 ns)
{
	__u32 i = p->row * SLOTS_MAX + slot;
	__u64 *sum = bpf_map_lookup_elem(&spent, &i);

	if (sum)
		__sync_fetch_and_add(sum, ns);
}

/* This CPU's word of running. */
static __always_inline void tell(__u64 word)
{
	__u32 i = bpf_get_smp_processor_id() * RUNNING_STRIDE;
	__u64 *now = bpf_map_lookup_elem(&running, &i);

	if (now)
		*(volatile __u64 *)now = word;
}

static __always_inline void tell_of(struct thread *t)
{
	__u64 word = t->since >> RUNNING_UNIT_BITS;

	if (t->owner == SLOT_UNDECIDED) {
		tell(0);
		return;
	}
	word = word << RUNNING_WATCH_BITS | (t->watch & ((1 << RUNNING_WATCH_BITS) - 1));
	tell(word << RUNNING_SLOT_BITS | t->owner);
}

static __always_inline void advance(struct thread *t, struct watched_process *p)
{
	__u64 now = bpf_ktime_get_ns();
	__u64 ns = now - t->since;

	t->since = now;
	if (t->owner == SLOT_UNDECIDED)
		t->undecided += ns;
	else
		charge(p, t->owner, ns);
}

static __always_inline void decide(struct thread *t, struct watched_process *p, __u32 slot)
{
	if (t->undecided)
		charge(p, slot, t->undecided);
	t->undecided = 0;
}

static __always_inline long number(struct pt_regs *regs)
{
	struct pt_regs___x86_64 *x86 = (void *)regs;
	struct pt_regs___arm64 *arm = (void *)regs;

	if (bpf_core_field_exists(x86->orig_ax))
		return x86->orig_ax;
	if (bpf_core_field_exists(arm->syscallno))
		return arm->syscallno;
	return -1;
}

static __always_inline __u64 argument(struct pt_regs *regs, int n)
{
	struct pt_regs___x86_64 *x86 = (void *)regs;
	struct pt_regs___arm64 *arm = (void *)regs;

	if (bpf_core_field_exists(x86->di))
		return n == 0 ? x86->di : n == 1 ? x86->si : x86->dx;
	if (bpf_core_field_exists(arm->orig_x0))
		return n == 0 ? arm->orig_x0 : n == 1 ? arm->regs[1] : arm->regs[2];
	return ~0ULL;
}

/* What is known of a thread since its process is watched, or NULL. */
static __always_inline struct thread *thread(struct task_struct *task, struct watched_process *p)
{
	struct thread *t = bpf_task_storage_get(&thread_by_task, task, 0, 0);

	return t && t->watch == p->watch ? t : NULL;
}

static __always_inline struct thread *thread_made(struct task_struct *task,
						  struct watched_process *p)
{
	struct thread *t =
		bpf_task_storage_get(&thread_by_task, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (t && t->watch != p->watch) {
		t->since = bpf_ktime_get_ns();
		t->undecided = 0;
		t->owner = SLOT_UNDECIDED;
		t->slept = false;
		t->watch = p->watch;
	}
	return t;
}

/* The slot that owns an open file, or SLOT_OWN. */
static __always_inline __u32 owner_of(struct task_struct *task, __u32 fd)
{
	struct fdtable *fdt = task->files->fdt;
	struct owned_file key = {};
	struct file *file = NULL;
	struct inode *inode;
	__u32 *slot;

	if (fd >= fdt->max_fds)
		return SLOT_OWN;
	bpf_probe_read_kernel(&file, sizeof(file), fdt->fd + fd);
	inode = BPF_CORE_READ(file, f_inode);
	key.ino = BPF_CORE_READ(inode, i_ino);
	key.dev = BPF_CORE_READ(inode, i_sb, s_dev);
	slot = bpf_map_lookup_elem(&slot_by_file, &key);
	if (slot)
		return *slot;
	/* In an owned directory: a log that was rotated is known at once. */
	key.ino = BPF_CORE_READ(file, f_path.dentry, d_parent, d_inode, i_ino);
	slot = bpf_map_lookup_elem(&slot_by_file, &key);
	return slot ? *slot : SLOT_OWN;
}

static __always_inline __u32 target_of(struct task_struct *task, struct pt_regs *regs, __u32 call)
{
	__u32 slot = owner_of(task, argument(regs, 0));

	if (slot != SLOT_OWN || (call != CALL_WRITE_2 && call != CALL_WRITE_3))
		return slot;
	return owner_of(task, argument(regs, call == CALL_WRITE_2 ? 1 : 2));
}

/* The thread has nothing more to do for whom it worked. */
static __always_inline void wait(struct thread *t, struct watched_process *p)
{
	advance(t, p);
	decide(t, p, SLOT_OVERHEAD);
	t->owner = SLOT_UNDECIDED;
	t->slept = false;
	tell_of(t);
}

static __always_inline void work(struct thread *t, struct watched_process *p, __u32 call,
				 __u32 slot)
{
	if (call != CALL_READ && slot != SLOT_OWN)
		t->owner = SLOT_UNDECIDED;
	advance(t, p);
	decide(t, p, slot);
	t->owner = slot;
	t->slept = false;
	tell_of(t);
}

SEC("tp_btf/sys_exit")
int BPF_PROG(shared_exit, struct pt_regs *regs, long ret)
{
	struct watched_process *p = watched(bpf_get_current_pid_tgid() >> 32);
	__u32 call = CALL_NONE, slot = SLOT_OVERHEAD;
	struct task_struct *task;
	struct thread *t;
	long id;

	if (!p)
		return 0;
	task = bpf_get_current_task_btf();
	t = thread_made(task, p);
	if (!t)
		return 0;
	id = number(regs);
	if (id >= 0 && id < CALLS_MAX)
		call = call_by_number[id];
	if (call != CALL_NONE && call != CALL_WAIT && ret != -EAGAIN)
		slot = target_of(task, regs, call);
	if (slot != SLOT_OVERHEAD)
		work(t, p, call, slot);
	else if (call == CALL_WAIT || ret == -EAGAIN || t->slept)
		wait(t, p);
	return 0;
}

static __always_inline void leave(struct task_struct *prev, bool sleeps)
{
	struct watched_process *p = watched(prev->tgid);
	struct thread *t;

	if (!p)
		return;
	t = thread(prev, p);
	if (!t)
		return;
	advance(t, p);
	tell(0);
	if (!sleeps)
		return;
	t->slept = true;
	t->owner = SLOT_UNDECIDED; /* the call that it sleeps in tells who woke it */
}

static __always_inline void arrive(struct task_struct *next)
{
	struct watched_process *p = watched(next->tgid);
	struct thread *t;

	if (!p)
		return;
	t = thread(next, p);
	if (!t)
		return;
	t->since = bpf_ktime_get_ns();
	tell_of(t);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(shared_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	leave(prev, !preempt && prev->__state != TASK_RUNNING);
	arrive(next);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
