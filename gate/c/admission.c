// SPDX-License-Identifier: Apache-2.0
/* Adds the gate of a new container to the pool (see gatepool.c). */
#define _GNU_SOURCE
#include "admission.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "fork.h"

/* Descriptors for the files of a message, and for other files that are open for a moment. */
#define ADMISSION_SPARE_FILES 32

/* Processes that may connect at once to become the supervisor; one of them does. */
#define ADMISSION_BACKLOG 8

static int admission_parse(const void *bytes, size_t length, unsigned int files,
			   struct gate_admission *a)
{
	memset(a, 0, sizeof(*a));
	memcpy(a, bytes, length < sizeof(*a) ? length : sizeof(*a));
	if (length != sizeof(*a) || a->version != GATE_VERSION)
		return EPROTO;
	if (files != GATE_ADMISSION_FILES)
		return EBADF;
	if ((a->host_first & ~(uint32_t)(BOARD_HOST_FIRST_4 | BOARD_HOST_FIRST_6)) != 0 ||
	    a->datagrams > 1)
		return EINVAL;
	return 0;
}

/* Reports why a new container gets no gate. */
static void admission_refuse(struct pooled_gate *p, const char *operation)
{
	if (p->errors >= 0)
		dprintf(p->errors, "%s: %s\n", operation, strerror(errno));
	idle_remove(p);
}

/* The files of an admission are in the order of GATE_FILES, between two others. */
static struct pooled_gate *admission_add(const struct gate_admission *a, const int *files)
{
	struct pooled_gate *p = idle_find_free();

	if (p == NULL)
		return NULL;
	p->errors = files[0];
	memcpy(p->files, &files[1], (GATE_FILES - 1) * sizeof(int));
	p->files[GATE_FILE_BOARD] = -1;
	p->cgroup = files[GATE_ADMISSION_FILES - 1];
	p->process = p->theirs = -1;
	p->supervised = true;
	p->retry = false;
	p->gate = (struct gate){
		.own = a->own,
		.cookie = a->cookie,
		.host_first = a->host_first,
		.datagrams = a->datagrams,
		.untrapped = a->untrapped,
		.virtual_pool = a->virtual_pool,
		.uid = a->uid,
		.gid = a->gid,
	};
	idle_set_state(p, POOLED_PARTLY);
	return p;
}

/* Whether all gates can be idle at once, with descriptors to spare. A gate is lost if there is no
 * room for the descriptors that it hands back. */
static bool admission_has_room(void)
{
	struct rlimit limit;
	rlim_t need = ADMISSION_SPARE_FILES;

	for (struct pooled_gate *p = idle_next(NULL); p != NULL; p = idle_next(p))
		need += GATE_FILES + 2; /* the cgroup and the socket to its process */
	return getrlimit(RLIMIT_NOFILE, &limit) == 0 && need <= limit.rlim_cur;
}

/* Makes the parts of a gate that last as long as its container. */
static bool admission_prepare(struct pooled_gate *p)
{
	bool made;

	if (!admission_has_room()) {
		errno = EMFILE;
		return false;
	}
	made = gate_make_board(&p->gate);

	p->files[GATE_FILE_BOARD] = p->gate.board_file;
	return made && madvise(p->gate.board, BOARD_SIZE, MADV_DONTFORK) == 0 &&
	       listen(p->files[GATE_FILE_ADOPT_SOCKET], ADMISSION_BACKLOG) == 0;
}

struct pooled_gate *admission_admit(struct gate_message *m)
{
	struct gate_admission a;
	int error = admission_parse(m->bytes, m->length, m->count, &a);
	struct pooled_gate *p = error == 0 ? admission_add(&a, m->files) : NULL;

	if (p == NULL) {
		gate_close_files(m);
		return NULL;
	}
	if (!admission_prepare(p)) {
		admission_refuse(p, "keep gate");
		return NULL;
	}
	if (fork_start(p) != NULL)
		return p;
	if (p->retry)
		admission_refuse(p, "start gate");
	return NULL;
}
