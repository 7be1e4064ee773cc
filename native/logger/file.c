// SPDX-License-Identifier: Apache-2.0
/*
 * The current file is FILE; older ones are FILE.1, FILE.2, ... or FILE.1.gz, ... as with
 * Docker. There is a FILE at any time: it gets its second name FILE.1 before a new one
 * takes its place. Whoever is killed in between leaves two names of one file, which
 * file_open tells from an old one.
 *
 * A file has whole entries only. Of those that could not be written, what got there is
 * cut off, and they are counted; as soon as there is room an entry says how many.
 */
#define _GNU_SOURCE
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lines.h"

extern char **environ;

/* As long as an older file's name can be. */
#define NAME_SIZE (PATH_MAX + 16)

static void file_name(char name[NAME_SIZE], const struct file *f, int n, const char *suffix)
{
	snprintf(name, NAME_SIZE, "%s.%d%s", f->options->path, n, suffix);
}

static int file_folders(const char *path)
{
	char dir[PATH_MAX];

	for (const char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
		memcpy(dir, path, (size_t)(p - path));
		dir[p - path] = 0;
		if (mkdir(dir, 0750) < 0 && errno != EEXIST)
			return -1;
	}
	return 0;
}

/* Opens a regular file, without waiting for anything else. */
static int file_open_log(const char *path, int flags, struct stat *st)
{
	int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | flags, 0640);

	if (fd < 0)
		return -1;
	if (fstat(fd, st) == 0 && S_ISREG(st->st_mode))
		return fd;
	close(fd);
	errno = EINVAL;
	return -1;
}

/* Cuts off an entry of ours that was not written to its end. A last line of anything
 * else is ended. -1 if it cannot. */
static int file_mend(struct file *f)
{
	static const char ours[] = "{\"log\":\"";
	static char tail[OUTPUT_SIZE - OUTPUT_FULL]; /* longer than an entry */
	off_t at = f->size > (off_t)sizeof(tail) ? f->size - (off_t)sizeof(tail) : 0;
	ssize_t n = pread(f->fd, tail, sizeof(tail), at);
	char *last;
	size_t size;

	if (n < 0 || n != f->size - at)
		return -1;
	if (n == 0 || tail[n - 1] == '\n')
		return 0;
	last = memrchr(tail, '\n', (size_t)n);
	last = last ? last + 1 : tail;
	size = (size_t)(tail + n - last);
	if (size > sizeof(ours) - 1)
		size = sizeof(ours) - 1;
	if (memcmp(last, ours, size) != 0 || (last == tail && at > 0)) {
		f->size++;
		return write(f->fd, "\n", 1) == 1 ? 0 : -1;
	}
	f->size = at + (last - tail);
	return ftruncate(f->fd, f->size);
}

int file_open(struct file *f, const struct options *o)
{
	char older[NAME_SIZE];
	struct stat st, other;

	memset(f, 0, sizeof(*f));
	f->options = o;
	if (file_folders(o->path) < 0)
		return -1;
	f->fd = file_open_log(o->path, 0, &st);
	if (f->fd < 0)
		return -1;
	f->size = st.st_size;
	file_name(older, f, 1, "");
	if (lstat(older, &other) == 0 && other.st_ino == st.st_ino && other.st_dev == st.st_dev)
		unlink(older);
	/* A disk that is full now may have room later: nothing to give up for. */
	file_mend(f);
	return 0;
}

static uint64_t file_entries(const char *data, size_t size)
{
	uint64_t n = 0;

	for (const char *end = data + size; (data = memchr(data, '\n', (size_t)(end - data)));
	     data++)
		n++;
	return n;
}

/* Writes whole entries, and says how many bytes they took. */
static size_t file_write_entries(struct file *f, const char *data, size_t size)
{
	size_t done = 0, whole;
	const char *last;

	while (done < size) {
		ssize_t n = write(f->fd, data + done, size - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			f->lost_why = n < 0 ? errno : ENOSPC;
			break;
		}
		done += (size_t)n;
	}
	if (done == size) {
		f->size += (off_t)size;
		return size;
	}
	last = memrchr(data, '\n', done);
	whole = last ? (size_t)(last + 1 - data) : 0;
	f->size += (off_t)whole;
	if (whole < done && ftruncate(f->fd, f->size) < 0)
		f->size += (off_t)(done - whole); /* it stays; mend cuts it off next time */
	return whole;
}

/* Says how many entries were lost, if that can be written. */
static bool file_say_lost(struct file *f, struct timespec now)
{
	static struct output note;
	char text[160];

	snprintf(text, sizeof(text), "tsugiki-log: %llu lines were not written: %s",
		 (unsigned long long)f->lost, strerror(f->lost_why));
	note.used = 0;
	output_say(&note, now, text);
	if (file_write_entries(f, note.data, note.used) < note.used)
		return false;
	f->lost = 0;
	return true;
}

void file_write(struct file *f, const char *data, size_t size)
{
	struct timespec now;
	size_t done;

	if (f->lost > 0) {
		clock_gettime(CLOCK_REALTIME, &now);
		/* Also if the clock was put back. */
		if ((now.tv_sec < f->lost_again && now.tv_sec + 2 > f->lost_again) ||
		    !file_say_lost(f, now)) {
			f->lost += file_entries(data, size);
			if (now.tv_sec >= f->lost_again || now.tv_sec + 2 <= f->lost_again)
				f->lost_again = now.tv_sec + 1;
			return;
		}
	}
	done = file_write_entries(f, data, size);
	if (done < size) {
		f->lost = file_entries(data + done, size - done);
		f->lost_again = time(NULL) + 1;
	}
}

/* Moves the older files on by one; the oldest goes. Each place is empty by the time that
 * it is moved to. */
static void file_move_older(const struct file *f)
{
	static const char *const suffixes[] = {"", ".gz"};
	char from[NAME_SIZE], to[NAME_SIZE];

	for (int i = 0; i < 2; i++) {
		file_name(to, f, f->options->max_file - 1, suffixes[i]);
		unlink(to);
		for (int n = f->options->max_file - 2; n >= 1; n--) {
			file_name(from, f, n, suffixes[i]);
			file_name(to, f, n + 1, suffixes[i]);
			rename(from, to);
		}
	}
}

/* Starts gzip, of which there is one on each machine with container engines. */
static void file_compress(struct file *f)
{
	char older[NAME_SIZE];
	char *argv[] = {"nice", "gzip", "-nf", older, NULL};

	file_name(older, f, 1, "");
	if (posix_spawnp(&f->gzip, argv[0], NULL, NULL, argv, environ) != 0)
		f->gzip = 0; /* it stays as it is, which readers take too */
}

static void file_await_gzip(struct file *f)
{
	if (f->gzip > 0)
		while (waitpid(f->gzip, NULL, 0) < 0 && errno == EINTR)
			;
	f->gzip = 0;
}

void file_rotate(struct file *f)
{
	char next[NAME_SIZE], older[NAME_SIZE];
	time_t now = time(NULL);
	struct stat st;
	int fd;

	if (now < f->rotate_at && now + 2 > f->rotate_at)
		return;
	f->rotate_at = now + 1;
	file_await_gzip(f);
	snprintf(next, sizeof(next), "%s.next", f->options->path);
	unlink(next); /* of one that was killed */
	fd = file_open_log(next, O_EXCL, &st);
	if (fd < 0)
		return;
	if (f->options->max_file > 1) {
		file_move_older(f);
		file_name(older, f, 1, "");
		/* Not all file systems have second names. */
		if (link(f->options->path, older) < 0)
			rename(f->options->path, older);
	}
	if (rename(next, f->options->path) < 0) {
		close(fd);
		return;
	}
	close(f->fd);
	f->fd = fd;
	f->size = 0;
	f->rotate_at = 0;
	if (f->options->compress)
		file_compress(f);
}

void file_close(struct file *f)
{
	struct timespec now;

	if (f->lost > 0) {
		clock_gettime(CLOCK_REALTIME, &now);
		file_say_lost(f, now);
	}
	file_await_gzip(f);
	close(f->fd);
}
