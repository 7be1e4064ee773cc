// SPDX-License-Identifier: Apache-2.0
/*
 * Of sanitized builds: what ASAN_OPTIONS would say. The gate and the keeper have no
 * environment and no standard error, and the leak check traces the process, which is
 * not dumpable; the shim is in programs that are not ours, after their other
 * libraries.
 */
#ifndef SANITIZED_LOG
#define SANITIZED_LOG "stderr"
#endif

#define SANITIZE_EXPORT __attribute__((visibility("default")))

SANITIZE_EXPORT const char *__asan_default_options(void);
SANITIZE_EXPORT const char *__ubsan_default_options(void);

const char *__asan_default_options(void)
{
	return "verify_asan_link_order=0:detect_leaks=0:log_path=" SANITIZED_LOG;
}

const char *__ubsan_default_options(void)
{
	return "log_path=" SANITIZED_LOG;
}
