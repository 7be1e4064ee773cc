// Package bpf holds the eBPF programs, as C source and as the objects that the
// compiler made of them, with Go types generated from the C ones.
//
// It loads and attaches nothing: that is for the package that owns the
// purpose: policy/enforcer, charge/shared, charge/softirq, forward. The objects are committed;
// `make generate` makes them again with clang.
package bpf

//go:generate go tool bpf2go -go-package bpf -output-dir . -target bpfel -type addr -type port_range -type graft_option -type prefix -type egress -type nat64 -type number -type endpoint -type endpoint_name -type service -type location -type sender -type peer -type held -type decision -type second -type source -type source_verdict -type steered -type virtual_addr -type virtual_host -type stand_in -cflags "-O2 -g -Wall -Wextra -Werror -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" Policy policy.bpf.c
//go:generate go tool bpf2go -go-package bpf -output-dir . -target bpfel -cflags "-O2 -g -Wall -Wextra -Werror -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" Steer steer.bpf.c
//go:generate go tool bpf2go -go-package bpf -output-dir . -target bpfel -type message -cflags "-O2 -g -Wall -Wextra -Werror -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" Translate translate.bpf.c
//go:generate go tool bpf2go -go-package bpf -output-dir . -target bpfel -type owner_slot -type running_word -type owned_file -type watched_process -cflags "-O2 -g -Wall -Wextra -Wno-unused-parameter -Werror -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" Shared shared.bpf.c
//go:generate go tool bpf2go -go-package bpf -output-dir . -target bpfel -type receive_slot -type receive_work -type receive_device -cflags "-O2 -g -Wall -Wextra -Wno-unused-parameter -Werror -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" Softirq softirq.bpf.c
//go:generate go tool bpf2go -go-package bpf -output-dir . -target bpfel -type pod_addr -type pod_flag -type pod -type mac_key -type addr_key -type pair -type verdict -type why -type counts -type told -cflags "-O2 -g -Wall -Wextra -Werror -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" Forward forward.bpf.c

// PolicyObject returns the compiled object of the policy programs. Nobody may change it.
func PolicyObject() []byte { return _PolicyBytes }

// ForwardObject returns the compiled object of the forward programs. Nobody may change it.
func ForwardObject() []byte { return _ForwardBytes }
