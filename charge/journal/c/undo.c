// SPDX-License-Identifier: Apache-2.0
/*
 * Theory of operation. Only root can write the journal, but it may be damaged. So nothing outside
 * of a cgroup file system is opened for writing. The directory of a file is opened first, with
 * O_PATH. Only if it is in a cgroup file system is the file opened. A group that was made later
 * under an old name has another inode, and is left alone.
 *
 * Somebody else may write a file between our read and our write: cgroup files have no
 * compare-and-exchange. That window is two system calls long.
 */
#define _GNU_SOURCE
#include "undo.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

/* How often processes are moved out of a group that does not become empty, and the pause between
 * two attempts: about two seconds in all. */
#define UNDO_ROUNDS 1000
#define UNDO_PAUSE  2000000L /* ns */

static bool undo_is_gone(int error)
{
	return error == ENOENT || error == ENODEV || error == ENOTDIR;
}

/* Opens a directory of a cgroup file system with O_PATH. Fails with EXDEV in other file systems. */
static int undo_open_group(const char *path)
{
	struct statfs fs;
	int dir = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (dir < 0)
		return -1;
	if (fstatfs(dir, &fs) == 0 &&
	    (fs.f_type == CGROUP_SUPER_MAGIC || fs.f_type == CGROUP2_SUPER_MAGIC))
		return dir;
	close(dir);
	errno = EXDEV;
	return -1;
}

/* Cuts off the last component and returns it. PATH becomes the directory. */
static const char *undo_split(char path[JOURNAL_PATH])
{
	char *slash = strrchr(path, '/');

	*slash = '\0';
	return slash + 1;
}

/* Opens the directory of PATH. NAME becomes the last component of PATH. */
static int undo_open_parent(const char *path, char place[JOURNAL_PATH], const char **name)
{
	memcpy(place, path, JOURNAL_PATH);
	*name = undo_split(place);
	return undo_open_group(place);
}

/* Reads a file's first line without surrounding space. */
static bool undo_read_line(int fd, char *line, size_t size)
{
	ssize_t n = pread(fd, line, size - 1, 0);
	char *start = line;

	if (n < 0)
		return false;
	line[n] = '\0';
	start += strspn(start, " \t");
	start[strcspn(start, "\n")] = '\0';
	for (size_t end = strlen(start); end > 0 && strchr(" \t", start[end - 1]) != NULL; end--)
		start[end - 1] = '\0';
	memmove(line, start, strlen(start) + 1);
	return true;
}

static bool undo_is_ours(const struct journal_entry *entry, const char *line)
{
	for (int i = 0; i < 2; i++)
		if (entry->ours[i].length > 0 && strcmp(entry->ours[i].bytes, line) == 0)
			return true;
	return false;
}

/*
 * Writes a file's original text. Before Linux 6.10 (commit 49217ea147df), a write to cpu.max
 * divides cpu.max.burst by a thousand. So the burst is read before and written again after it.
 */
static bool undo_put(int dir, const char *name, int fd, const char *original)
{
	char burst[JOURNAL_TEXT];
	int burst_fd = -1;
	bool done;

	if (strcmp(name, "cpu.max") == 0)
		burst_fd = openat(dir, "cpu.max.burst", O_RDWR | O_NOFOLLOW | O_CLOEXEC);
	if (burst_fd >= 0 && !undo_read_line(burst_fd, burst, sizeof(burst)))
		burst[0] = '\0';
	done = pwrite(fd, original, strlen(original), 0) >= 0;
	if (burst_fd >= 0) {
		int error = errno;

		if (done && burst[0] != '\0')
			done = pwrite(burst_fd, burst, strlen(burst), 0) >= 0;
		if (done)
			errno = error;
		close(burst_fd);
	}
	return done;
}

static enum undo_outcome undo_write(const struct journal_entry *entry)
{
	enum undo_outcome outcome = UNDO_FAILED;
	char place[JOURNAL_PATH], line[256];
	const char *name;
	struct stat st;
	int fd, dir = undo_open_parent(entry->path, place, &name);

	if (dir < 0)
		return undo_is_gone(errno) ? UNDO_NOTHING : UNDO_FAILED;
	fd = openat(dir, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0) {
		outcome = undo_is_gone(errno) ? UNDO_NOTHING : UNDO_FAILED;
	} else if (fstat(fd, &st) == 0 && st.st_ino != entry->inode) {
		outcome = UNDO_NOTHING;
	} else if (!undo_read_line(fd, line, sizeof(line))) {
		outcome = undo_is_gone(errno) ? UNDO_NOTHING : UNDO_FAILED;
	} else if (!undo_is_ours(entry, line)) {
		outcome = UNDO_NOTHING;
	} else if (undo_put(dir, name, fd, entry->originals[entry->original])) {
		outcome = UNDO_DONE;
	} else if (undo_is_gone(errno)) {
		outcome = UNDO_NOTHING;
	}
	if (fd >= 0)
		close(fd);
	close(dir);
	return outcome;
}

/* The group that processes are moved back to. */
struct undo_home {
	char path[JOURNAL_PATH];
	int procs; /* the group's cgroup.procs, or -1 */
};

/*
 * Opens the group at the path in HOME, or its nearest existing ancestor. The group must be in the
 * file system DEVICE.
 */
static bool undo_open_home(struct undo_home *home, dev_t device)
{
	for (; home->path[0] != '\0'; undo_split(home->path)) {
		struct stat st;
		int dir = undo_open_group(home->path);

		if (dir < 0 && undo_is_gone(errno))
			continue;
		if (dir < 0)
			return false;
		if (fstat(dir, &st) != 0 || st.st_dev != device) {
			close(dir);
			break;
		}
		home->procs = openat(dir, "cgroup.procs", O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
		close(dir);
		if (home->procs >= 0)
			return true;
		if (!undo_is_gone(errno))
			return false;
	}
	errno = EXDEV;
	return false;
}

/*
 * Moves the processes in TEXT, a part of cgroup.procs. Only whole lines count. A 0 is a process of
 * another pid namespace. Written, it would mean this process.
 */
static bool undo_move_listed(struct undo_home *home, dev_t device, char *text)
{
	for (char *end; (end = strchr(text, '\n')) != NULL; text = end + 1) {
		*end = '\0';
		if (strtol(text, NULL, 10) <= 0)
			continue;
		while (write(home->procs, text, strlen(text)) < 0 && errno != ESRCH) {
			/* The group was removed meanwhile, or it is a v2 group that may have no
			 * processes. Take the group above it. */
			if (!undo_is_gone(errno) && errno != EBUSY && errno != EOPNOTSUPP)
				return false;
			close(home->procs);
			home->procs = -1;
			undo_split(home->path);
			if (!undo_open_home(home, device))
				return false;
		}
	}
	return true;
}

/* Moves all processes out of GROUP until it can be removed: a process may fork meanwhile. GROUP
 * is NAME in the directory PARENT. */
static bool undo_empty(int parent, const char *name, int group, struct undo_home *home,
		       dev_t device)
{
	const struct timespec pause = {.tv_nsec = UNDO_PAUSE};

	for (int round = 0; round < UNDO_ROUNDS; round++) {
		char text[4096];
		ssize_t n = -1;
		int procs = openat(group, "cgroup.procs", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

		if (procs >= 0) {
			n = read(procs, text, sizeof(text) - 1);
			close(procs);
		}
		if (n < 0)
			return undo_is_gone(errno);
		text[n] = '\0';
		if (!undo_move_listed(home, device, text))
			return false;
		if (unlinkat(parent, name, AT_REMOVEDIR) == 0 || undo_is_gone(errno))
			return true;
		if (errno != EBUSY)
			return false;
		/* An exiting process cannot be moved, and is gone soon. */
		if (round > 0)
			(void)nanosleep(&pause, NULL);
	}
	return false;
}

/* Removes the parent of the placements' groups, unless it has other groups. */
static void undo_remove_shelf(const char *path)
{
	if (strcmp(strrchr(path, '/') + 1, JOURNAL_SHELF) == 0)
		(void)rmdir(path);
}

static enum undo_outcome undo_move(const struct journal_entry *entry)
{
	enum undo_outcome outcome = UNDO_FAILED;
	struct undo_home home = {.procs = -1};
	char place[JOURNAL_PATH];
	const char *name;
	struct stat st;
	int group, parent = undo_open_parent(entry->path, place, &name);

	if (parent < 0)
		return undo_is_gone(errno) ? UNDO_NOTHING : UNDO_FAILED;
	group = openat(parent, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	memcpy(home.path, entry->to, sizeof(home.path));
	if (group < 0) {
		outcome = undo_is_gone(errno) ? UNDO_NOTHING : UNDO_FAILED;
	} else if (fstat(group, &st) == 0 && st.st_ino != entry->inode) {
		outcome = UNDO_NOTHING;
	} else if (undo_open_home(&home, st.st_dev) &&
		   undo_empty(parent, name, group, &home, st.st_dev)) {
		outcome = UNDO_DONE;
		undo_remove_shelf(place);
	}
	if (home.procs >= 0)
		close(home.procs);
	if (group >= 0)
		close(group);
	close(parent);
	return outcome;
}

enum undo_outcome undo_entry(const struct journal_entry *entry)
{
	return entry->order == JOURNAL_MOVE ? undo_move(entry) : undo_write(entry);
}
