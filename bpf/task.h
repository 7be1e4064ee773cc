/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What the programs that account CPU time read of the kernel's own structures.
 * Only the members that are read: the loader finds where they are in the running
 * kernel (CO-RE).
 */
#ifndef TSUGIKI_TASK_H
#define TSUGIKI_TASK_H

#include <linux/types.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct super_block {
	__u32 s_dev; /* MKDEV: 12 bits of major, 20 of minor */
};

struct inode {
	struct super_block *i_sb;
	unsigned long i_ino;
};

struct dentry {
	struct dentry *d_parent;
	struct inode *d_inode;
};

struct path {
	struct dentry *dentry;
};

struct file {
	struct inode *f_inode;
	struct path f_path;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct kernfs_node {
	__u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};

struct css_set {
	struct cgroup_subsys_state *subsys[1]; /* as many as the kernel has */
};

struct task_struct {
	unsigned int flags;
	unsigned int __state; /* since 5.14 */
	int pid;
	int tgid;
	struct files_struct *files;
	struct css_set *cgroups;
};

/* The arguments of a system call, by architecture. */
struct pt_regs {
};

struct pt_regs___x86_64 {
	unsigned long di, si, dx, orig_ax;
};

struct pt_regs___arm64 {
	__u64 regs[31];
	__u64 orig_x0;
	int syscallno;
};

#pragma clang attribute pop

/* Its number is the running kernel's. */
enum cgroup_subsys_id {
	cpu_cgrp_id = 1,
};

#define TASK_RUNNING 0
#define PF_KTHREAD   0x00200000

#endif
