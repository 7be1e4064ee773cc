// SPDX-License-Identifier: Apache-2.0
/* What a case prints; every line is one write, so that lines of children and
 * threads do not mix. */
#include "probe.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <sys/epoll.h>

static atomic_int failed;

void probe_fail(void)
{
	failed = 1;
}

int probe_status(void)
{
	return failed ? 1 : 0;
}

void probe_line(const char *step, const char *fmt, ...)
{
	char buf[512];
	int keep = errno, n, m;
	va_list ap;

	n = snprintf(buf, sizeof(buf), "%s: ", step);
	va_start(ap, fmt);
	m = vsnprintf(buf + n, sizeof(buf) - n - 1, fmt, ap);
	va_end(ap);
	n += m < (int)sizeof(buf) - n - 1 ? m : (int)sizeof(buf) - n - 2;
	buf[n++] = '\n';
	if (write(1, buf, n) != n)
		_exit(4);
	errno = keep;
}

/* strerrorname_np is not in every libc. */
const char *probe_errno(int err)
{
#define E(name)                                                                                    \
	{                                                                                          \
		name, #name                                                                        \
	}
	static const struct {
		int err;
		const char *name;
	} names[] = {
		{0, "0"},	    E(EPERM),
		E(ENOENT),	    E(ESRCH),
		E(EINTR),	    E(EIO),
		E(EBADF),	    E(ECHILD),
		E(EAGAIN),	    E(ENOMEM),
		E(EACCES),	    E(EFAULT),
		E(EBUSY),	    E(EEXIST),
		E(ENODEV),	    E(ENOTDIR),
		E(EISDIR),	    E(EINVAL),
		E(ENFILE),	    E(EMFILE),
		E(ENOTTY),	    E(EFBIG),
		E(ESPIPE),	    E(EROFS),
		E(EPIPE),	    E(EDOM),
		E(ERANGE),	    E(ENAMETOOLONG),
		E(ENOSYS),	    E(ELOOP),
		E(EOVERFLOW),	    E(ENOTSOCK),
		E(EDESTADDRREQ),    E(EMSGSIZE),
		E(EPROTOTYPE),	    E(ENOPROTOOPT),
		E(EPROTONOSUPPORT), E(ESOCKTNOSUPPORT),
		E(EOPNOTSUPP),	    E(EPFNOSUPPORT),
		E(EAFNOSUPPORT),    E(EADDRINUSE),
		E(EADDRNOTAVAIL),   E(ENETDOWN),
		E(ENETUNREACH),	    E(ENETRESET),
		E(ECONNABORTED),    E(ECONNRESET),
		E(ENOBUFS),	    E(EISCONN),
		E(ENOTCONN),	    E(ESHUTDOWN),
		E(ETIMEDOUT),	    E(ECONNREFUSED),
		E(EHOSTUNREACH),    E(EALREADY),
		E(EINPROGRESS),	    E(ENOTUNIQ),
		E(ECANCELED),	    E(EREMOTE),
	};
#undef E
	static _Thread_local char other[24];

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i].err == err)
			return names[i].name;
	snprintf(other, sizeof(other), "errno %d", err);
	return other;
}

/* Prints what a call answered, whatever it is. */
long probe_rc(const char *step, long rc)
{
	if (rc < 0)
		probe_line(step, "%ld %s", rc, probe_errno(errno));
	else
		probe_line(step, "%ld", rc);
	return rc;
}

/* Prints what a call answered; Linux answers err, 0 standing for success. */
long probe_want(const char *step, long rc, int err)
{
	int got = rc < 0 ? errno : 0;

	probe_rc(step, rc);
	if (got != err) {
		probe_fail();
		probe_line(step, "not %s as Linux answers", err ? probe_errno(err) : "success");
	}
	return rc;
}

/* Prints that there is a descriptor; without one the case cannot go on. */
int probe_fd(const char *step, int fd)
{
	if (fd < 0)
		probe_die(step);
	probe_line(step, "fd");
	return fd;
}

bool probe_check(const char *step, bool ok)
{
	probe_line(step, ok ? "yes" : "no");
	if (!ok)
		probe_fail();
	return ok;
}

void probe_die(const char *step)
{
	probe_line(step, "cannot go on, %s", probe_errno(errno));
	exit(1);
}

/* The names of poll(2) and epoll(7) events, which share their values. */
const char *probe_events(unsigned int events)
{
	static const struct {
		unsigned int bit;
		const char *name;
	} names[] = {
		{EPOLLIN, "IN"},   {EPOLLPRI, "PRI"},	  {EPOLLOUT, "OUT"},  {EPOLLERR, "ERR"},
		{EPOLLHUP, "HUP"}, {EPOLLRDHUP, "RDHUP"}, {POLLNVAL, "NVAL"},
	};
	static _Thread_local char text[64];

	text[0] = 0;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (!(events & names[i].bit))
			continue;
		if (text[0])
			strcat(text, "|");
		strcat(text, names[i].name);
	}
	return text[0] ? text : "none";
}
