// SPDX-License-Identifier: Apache-2.0
/* Takes in the gate of a new container (see gatepool.c). */
#define _GNU_SOURCE
#include "admission.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "fork.h"

/* Descriptors for what comes in a message, and what else is open for a moment. */
#define PORTER_SPARE 32

/* Of those that may knock at once; one is let in. */
#define PORTER_BACKLOG 8

static int gate_admission_parse(const void *bytes, size_t length, unsigned int files,
				struct gate_admission *a)
{
	memset(a, 0, sizeof(*a));
	memcpy(a, bytes, length < sizeof(*a) ? length : sizeof(*a));
	if (length != sizeof(*a) || a->version != GATE_VERSION)
		return EPROTO;
	if (files != GATE_ADMISSION_FILES)
		return EBADF;
	if ((a->born & ~(uint32_t)(BOARD_BORN_4 | BOARD_BORN_6)) != 0 || a->datagrams > 1)
		return EINVAL;
	return 0;
}

/* Why a container that has just come has no gate. */
static void porter_refuse(struct lodger *l, const char *operation)
{
	if (l->errors >= 0)
		dprintf(l->errors, "%s: %s\n", operation, strerror(errno));
	porter_dismiss(l);
}

/* The files of an admission are in the order of GATE_FILES, between two others. */
static struct lodger *porter_register(const struct gate_admission *a, const int *files)
{
	struct lodger *l = calloc(1, sizeof(*l));

	if (l == NULL)
		return NULL;
	l->errors = files[0];
	memcpy(l->files, &files[1], (GATE_FILES - 1) * sizeof(int));
	l->files[GATE_FILE_BOARD] = -1;
	l->cgroup = files[GATE_ADMISSION_FILES - 1];
	l->line = -1;
	l->supervised = true;
	l->gate = (struct gate){
		.own = a->own,
		.cookie = a->cookie,
		.born = a->born,
		.datagrams = a->datagrams,
		.uid = a->uid,
		.gid = a->gid,
	};
	l->next = porter_lodgers;
	porter_lodgers = l;
	return l;
}

/* Whether all gates that there are may rest at once, with files to spare: one that hands over what
 * there is no room for is lost. */
static bool porter_has_room(void)
{
	struct rlimit limit;
	rlim_t need = PORTER_SPARE;

	for (struct lodger *l = porter_lodgers; l != NULL; l = l->next)
		need += GATE_FILES + 2; /* the cgroup and the line */
	return getrlimit(RLIMIT_NOFILE, &limit) == 0 && need <= limit.rlim_cur;
}

/* Makes what a gate keeps as long as there is its container. */
static bool porter_furnish(struct lodger *l)
{
	bool made;

	if (!porter_has_room()) {
		errno = EMFILE;
		return false;
	}
	made = gate_make_board(&l->gate);

	l->files[GATE_FILE_BOARD] = l->gate.board_file;
	return made && madvise(l->gate.board, BOARD_SIZE, MADV_DONTFORK) == 0 &&
	       listen(l->files[GATE_FILE_DOOR], PORTER_BACKLOG) == 0;
}

struct lodger *porter_admit(struct gate_message *m)
{
	struct gate_admission a;
	int error = gate_admission_parse(m->bytes, m->length, m->count, &a);
	struct lodger *l = error == 0 ? porter_register(&a, m->files) : NULL;

	if (l == NULL) {
		gate_close_files(m);
		return NULL;
	}
	if (!porter_furnish(l)) {
		porter_refuse(l, "keep gate");
		return NULL;
	}
	if (porter_wake(l) != NULL)
		return l;
	if (l->late)
		porter_refuse(l, "start gate");
	return NULL;
}
