/*
 * What Rust's standard library asks of an unwinder to print a backtrace. There is
 * none for musl here, and a program that aborts when it panics needs no other:
 * backtraces are empty.
 */

int _Unwind_Backtrace(void *callback, void *argument)
{
	(void)callback;
	(void)argument;
	return 5; /* _URC_END_OF_STACK */
}

unsigned long _Unwind_GetIP(void *context)
{
	(void)context;
	return 0;
}
