// SPDX-License-Identifier: Apache-2.0
/*
 * Theory of operation: programs in many containers begin at the same time. They share two 32-bit
 * words at the beginning of a file that is mounted into each container:
 *
 *	0	number of arrivals	a program adds 1, the starter stores 0
 *	4	generation		the starter adds 1
 *
 * A program reads the generation before it adds itself. So after a start that counted the program,
 * the generation differs from the one it has read. The kernel identifies a futex in a shared
 * mapping by its file, so it works across containers. The starter is the type Barrier of
 * density/load.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "load.h"

struct barrier {
	_Atomic uint32_t arrived, generation;
};

static struct barrier *barrier_open(const char *file)
{
	struct barrier *b;
	int fd = open(file, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		load_die(file);
	b = mmap(NULL, sizeof(*b), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (b == MAP_FAILED)
		load_die("map the barrier");
	close(fd);
	return b;
}

static void barrier_wait(struct barrier *b)
{
	uint32_t seen = atomic_load(&b->generation);

	atomic_fetch_add(&b->arrived, 1);
	syscall(SYS_futex, &b->arrived, FUTEX_WAKE, 1, NULL, NULL, 0);
	while (atomic_load(&b->generation) == seen) {
		if (syscall(SYS_futex, &b->generation, FUTEX_WAIT, seen, NULL, NULL, 0) < 0 &&
		    errno != EAGAIN && errno != EINTR)
			load_die("wait at the barrier");
	}
}

int load_at(int argc, char **argv)
{
	if (argc < 3)
		load_usage();
	barrier_wait(barrier_open(argv[1]));
	execvp(argv[2], argv + 2);
	load_die(argv[2]);
}
