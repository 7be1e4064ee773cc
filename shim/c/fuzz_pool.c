// SPDX-License-Identifier: Apache-2.0
/*
 * The pools on a model of the kernel's descriptor table, in which calls fail at any
 * time and the program closes and replaces what is not its own, forks and goes on as
 * the child.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define kernel6 kernel6_of_the_machine
#include "kernel.h"
#undef kernel6

static long kernel6(long number, long a, long b, long c, long d, long e, long f);

#include "pool.c"

enum { MODEL_FILES = 320 };

enum model_kind { MODEL_FREE, MODEL_OTHER, MODEL_PAIR, MODEL_SOCKET };

struct model_file {
	enum model_kind kind;
	bool given; /* the program has got it, or made it */
	bool close_on_exec, nonblock;
	int family, type;
	uint64_t inode;
};

static struct model {
	struct model_file file[MODEL_FILES];
	struct model_file sent[MARK_BATCH_MAX];
	unsigned int sent_count;
	int limit;
	int process;
	uint64_t inodes;
	const uint8_t *data;
	size_t size;
} model;

static struct board model_board;
static _Alignas(4096) char model_page[4096];

static unsigned int model_byte(void)
{
	if (model.size == 0)
		return 0;
	model.size--;
	return *model.data++;
}

/* One in sixteen calls fails. */
static bool model_fails(void)
{
	return model_byte() % 16 == 15;
}

static int model_lowest(int from)
{
	while (from < model.limit && model.file[from].kind != MODEL_FREE)
		from++;
	return from < model.limit ? from : -EMFILE;
}

static int model_put(struct model_file file, int from)
{
	int number = model_lowest(from);

	if (number >= 0)
		model.file[number] = file;
	return number;
}

static bool model_is_open(long number)
{
	return number >= 0 && number < MODEL_FILES && model.file[number].kind != MODEL_FREE;
}

static long model_pair(int *pair)
{
	struct model_file end = {.kind = MODEL_PAIR, .close_on_exec = true};

	pair[0] = model_put(end, 0);
	if (pair[0] < 0)
		return pair[0];
	pair[1] = model_put(end, 0);
	if (pair[1] < 0) {
		model.file[pair[0]].kind = MODEL_FREE;
		return pair[1];
	}
	return 0;
}

/* The gate: it may make fewer than asked for. */
static long model_order(long kind, long count)
{
	assert(count >= 1 && count <= MARK_BATCH_MAX);
	if (model_fails())
		return -EAFNOSUPPORT;
	model.sent_count = (unsigned int)count;
	if (model_fails())
		model.sent_count = 1 + model_byte() % model.sent_count;
	for (unsigned int i = 0; i < model.sent_count; i++)
		model.sent[i] = (struct model_file){.kind = MODEL_SOCKET,
						    .family = (int)(kind >> 8),
						    .type = (int)(kind & 0xff),
						    .inode = ++model.inodes};
	return model.sent_count;
}

/* As many descriptors as there is room for, in the message and in the table. */
static long model_receive(struct pool_message *msg, long flags)
{
	struct pool_rights *rights = msg->control;
	size_t room = (msg->control_length - offsetof(struct pool_rights, number)) / sizeof(int);
	unsigned int count = 0;

	assert(flags & POOL_CMSG_CLOEXEC);
	if (model.sent_count == 0)
		return -EAGAIN;
	while (count < model.sent_count && count < room) {
		int number;

		model.sent[count].close_on_exec = true;
		number = model_fails() ? -EMFILE : model_put(model.sent[count], 0);
		if (number < 0)
			break;
		rights->number[count++] = number;
	}
	model.sent_count = 0;
	msg->control_length = count > 0 ? POOL_RIGHTS(count) : 0;
	rights->length = POOL_RIGHTS(count);
	rights->level = POOL_SOL_SOCKET;
	rights->type = POOL_SCM_RIGHTS;
	return 1;
}

static long model_fcntl(long number, long what, long value)
{
	struct model_file copy;

	if (!model_is_open(number))
		return -EBADF;
	switch (what) {
	case POOL_F_DUPFD:
	case POOL_DUPFD_CLOEXEC:
		if (value >= model.limit)
			return -EINVAL;
		if (model_fails())
			return -EMFILE;
		copy = model.file[number];
		copy.close_on_exec = what == POOL_DUPFD_CLOEXEC;
		return model_put(copy, (int)value);
	case POOL_F_SETFD:
		model.file[number].close_on_exec = value != 0;
		return 0;
	case POOL_F_SETFL:
		model.file[number].nonblock = value & POOL_NONBLOCK;
		return 0;
	}
	abort();
}

static long kernel6(long number, long a, long b, long c, long d, long e, long f)
{
	(void)f;
	switch (number) {
	case __NR_socketpair:
		return model_fails() ? -ENOMEM : model_pair((int *)d);
	case __NR_socket:
		assert(model_is_open(c) && model.file[c].kind == MODEL_PAIR);
		return model_order(d, e);
	case __NR_recvmsg:
		return model_fails() ? -EAGAIN : model_receive((struct pool_message *)b, c);
	case __NR_close:
		if (!model_is_open(a))
			return -EBADF;
		assert(!model.file[a].given);
		model.file[a].kind = MODEL_FREE;
		return 0;
	case __NR_close_range:
		if (model_fails())
			return -ENOSYS; /* as before 5.9 */
		for (long number = a; number <= b; number++) {
			assert(model_is_open(number) && !model.file[number].given);
			model.file[number].kind = MODEL_FREE;
		}
		return 0;
	case __NR_fcntl:
		return model_fcntl(a, b, c);
	case __NR_prlimit64:
		((uint64_t *)d)[0] = (uint64_t)model.limit;
		return 0;
	case __NR_mmap:
		return model_fails() ? -ENOMEM : (long)model_page;
	case __NR_madvise:
		return model_fails() ? -EINVAL : 0;
	case __NR_getpid:
		return model.process;
	case __NR_fstat:
		if (!model_is_open(a))
			return -EBADF;
		((uint64_t *)b)[0] = 1;
		((uint64_t *)b)[1] = model.file[a].inode;
		return 0;
	case __NR_munmap:
	case __NR_nanosleep:
		return 0;
	}
	abort();
}

const struct board *shim_board(void)
{
	return &model_board;
}

static bool model_is_parked(int number)
{
	for (int i = 0; i < 4; i++) {
		struct pool *p = &pools[i / 2][i % 2];

		for (int k = 0; k < MARK_BATCH_MAX; k++)
			if (atomic_load(&p->parked) >> k & 1 && p->place[k].number == number &&
			    (uint32_t)p->place[k].inode == model.file[number].inode)
				return true;
	}
	return false;
}

/* The program's files are untouched, and all others are accounted for. */
static void model_check(const struct model *before, bool ours)
{
	for (int n = 0; n < MODEL_FILES; n++) {
		if (before->file[n].given)
			assert(memcmp(&before->file[n], &model.file[n], sizeof(model.file[n])) ==
			       0);
		else if (ours && model.file[n].kind != MODEL_FREE && !model.file[n].given)
			assert(model.file[n].kind == MODEL_SOCKET && model_is_parked(n));
	}
}

static void model_take(bool ours)
{
	unsigned int r = model_byte();
	int family = r & 1 ? POOL_AF_INET : POOL_AF_INET6;
	int type = r & 2 ? POOL_STREAM : POOL_DGRAM;
	int flags = (r & 4 ? POOL_CLOEXEC : 0) | (r & 8 ? POOL_NONBLOCK : 0);
	int lowest = model_lowest(0), number;
	static struct model before;
	struct model_file *file;

	before = model;
	number = shim_take_socket(family, type | flags, 0);
	assert(ours || number < 0);
	if (number >= 0) {
		file = &model.file[number];
		assert(model_is_open(number) && !file->given && file->family == family);
		assert(file->kind == MODEL_SOCKET && file->type == type);
		assert(file->close_on_exec == !!(flags & POOL_CLOEXEC));
		assert(file->nonblock == !!(flags & POOL_NONBLOCK));
		assert(number == lowest || number >= POOL_NUMBER); /* no room, or said to be none */
		file->given = true;
		for (int n = 0; n < MODEL_FILES; n++)
			assert(n == number || model.file[n].inode != file->inode ||
			       model.file[n].kind == MODEL_FREE);
	}
	model_check(&before, ours);
}

/* What a program does, to whatever is at a number. */
static void model_step(void)
{
	unsigned int what = model_byte() % 12, number = model_byte() * MODEL_FILES / 256;
	static struct model parent;
	struct model_file other = {.kind = MODEL_OTHER, .given = true};

	other.inode = ++model.inodes;
	switch (what) {
	case 0: /* close(2) */
		model.file[number].kind = MODEL_FREE;
		model.file[number].given = false;
		break;
	case 1: /* dup2(2) */
		if ((int)number < model.limit)
			model.file[number] = other;
		break;
	case 2:
		model_put(other, 0);
		break;
	case 3: /* close_range(2) */
		for (int n = 0; n < MODEL_FILES; n++)
			model.file[n] = (struct model_file){0};
		break;
	case 4: /* setrlimit(2); a lower limit closes nothing */
		model.limit = 1 + (int)number;
		break;
	case 5: /* fork(2): on in the child */
		shim_before_fork();
		shim_take_socket(POOL_AF_INET, POOL_STREAM, 0);
		model.process++;
		if (atomic_load(&pool_owner) != NULL)
			memset(model_page, 0, sizeof(model_page));
		parent = model;
		shim_forked();
		for (int n = 0; n < MODEL_FILES; n++)
			assert(model.file[n].kind == MODEL_FREE || model.file[n].given);
		model_check(&parent, true);
		break;
	case 6: /* one that nobody tells */
		model.process++;
		memset(model_page, 0, sizeof(model_page));
		break;
	case 7: /* vfork(2): a table of its own, but the same memory */
		if (atomic_load(&pool_owner) == NULL || *(int *)model_page == 0)
			break;
		parent = model;
		model.process++;
		model_take(false);
		parent.data = model.data;
		parent.size = model.size;
		model = parent;
		break;
	case 8:
		shim_drop_sockets();
		for (int n = 0; n < MODEL_FILES; n++)
			assert(model.file[n].kind != MODEL_SOCKET || model.file[n].given);
		break;
	default:
		model_take(true);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	memset(&model, 0, sizeof(model));
	memset(pools, 0, sizeof(pools));
	memset(model_page, 0, sizeof(model_page));
	atomic_store(&pool_owner, NULL);
	atomic_store(&pool_forks, 0);
	for (int i = 0; i < POOL_USERS; i++)
		atomic_store(&pool_users[i], NULL);
	model.limit = MODEL_FILES;
	model.process = 100;
	model.data = data;
	model.size = size;
	while (model.size > 0)
		model_step();
	return 0;
}
