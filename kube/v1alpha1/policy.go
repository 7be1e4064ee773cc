package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// GraftPolicy says where pods of its namespace listen and what they reach. A rule counts as far as
// the GraftEndpoint that it names is for the pod. What no rule names stays in the pod's own network.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced,shortName=gpol,categories=tsugiki
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ingress",type=string,JSONPath=`.spec.ingress[*].port`
// +kubebuilder:printcolumn:name="Translate",type=string,priority=1,JSONPath=`.spec.translate.endpoint`
// +kubebuilder:printcolumn:name="Charge",type=string,priority=1,JSONPath=`.spec.charge`
// +kubebuilder:printcolumn:name="Direct",type=boolean,priority=1,JSONPath=`.spec.directForward`
// +kubebuilder:printcolumn:name="Endpoints",type=string,JSONPath=`.status.endpoints`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GraftPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec GraftPolicySpec `json:"spec"`
	// +optional
	Status GraftPolicyStatus `json:"status,omitempty"`

	// TooLarge is the size of a specification of which only the selector is kept in memory.
	TooLarge int `json:"-"`
}

// GraftPolicySpec has the rules, and the pods that they are for. A pod has the rules of all policies
// that select it.
//
// +kubebuilder:validation:XValidation:rule="has(self.ingress) || has(self.egress) || has(self.translate) || has(self.directForward) || has(self.charge)",message="a policy needs ingress, egress, translate, directForward or charge"
// +kubebuilder:validation:XValidation:rule="!has(self.translate) || !has(self.mode) || self.mode != 'preload'",message="IPv4 is translated in the modes auto and seccomp"
type GraftPolicySpec struct {
	// PodSelector selects pods of the policy's namespace; {} selects all that have the RuntimeClass.
	PodSelector metav1.LabelSelector `json:"podSelector"`

	// Mode is how socket calls are intercepted. Policies that select the same pod have to agree.
	//
	// +optional
	// +kubebuilder:validation:Enum=auto;preload;seccomp
	Mode string `json:"mode,omitempty"`

	// Translate is for pods whose programs know IPv4 only, on nodes that reach other hosts by IPv6. Such
	// a pod has one container, and a RuntimeClass whose pods have no network (tsugiki-translate).
	// Policies that select the same pod have to agree.
	//
	// +optional
	Translate *Translation `json:"translate,omitempty"`

	// Charge says what becomes of CPU time that others spend for the pods: Take, as the configuration
	// of the node's agent says, or Count, which takes nothing of it from the pods' quotas. Count is for
	// namespaces with the label tsugiki.dev/charge=optional, which who runs the cluster gives. Policies
	// that select the same pod have to agree.
	//
	// +optional
	Charge Charge `json:"charge,omitempty"`

	// DirectForward is false to have all packets of the pods go through the bridge or the switch of
	// tsugiki-cni's network, and none directly to a pod of the same node. One such policy is enough.
	// It can not be true: what may go directly is the network's configuration to say.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="!self",message="directForward can only be false; the configuration of the network says what goes directly"
	DirectForward *bool `json:"directForward,omitempty"`

	// Ingress says where servers of the pods listen.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Ingress []IngressRule `json:"ingress,omitempty"`

	// Egress says what clients in the pods reach.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Egress []EgressRule `json:"egress,omitempty"`
}

// Translation has programs that know IPv4 only reach hosts of IPv6: each has a virtual IPv4 address
// inside the container, which the names of the hosts lead to.
type Translation struct {
	// Endpoint is the name of a GraftEndpoint of type IPv6 with resolvers. The pods reach all of its
	// destinations, and names are those that its resolvers know.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Endpoint string `json:"endpoint"`

	// Pool is the prefix of the virtual addresses, of 15 bits; 198.18.0.0/15, if it is not there.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=18
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self).ip().family() == 4 && cidr(self).prefixLength() == 15",message="write an IPv4 prefix of 15 bits, as 10.18.0.0/15"
	Pool string `json:"pool,omitempty"`

	// FTP are the ports of FTP's control connections; 21, if there are none.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=65535
	FTP []int32 `json:"ftp,omitempty"`

	// SIP are the ports at which SIP is spoken.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=65535
	SIP []int32 `json:"sip,omitempty"`
}

// Charge says what becomes of CPU time that others spend for a pod.
//
// +kubebuilder:validation:Enum=Take;Count
type Charge string

// The kinds of charging.
const (
	Take  Charge = "Take"
	Count Charge = "Count"
)

// LabelCharge is the label of namespaces whose pods need not be charged, if it is ChargeOptional.
const (
	LabelCharge    = "tsugiki.dev/charge"
	ChargeOptional = "optional"
)

// Protocol is TCP or UDP.
//
// +kubebuilder:validation:Enum=TCP;UDP
type Protocol string

// The protocols.
const (
	TCP Protocol = "TCP"
	UDP Protocol = "UDP"
)

// IngressRule has servers that listen at a port of the pod listen at an endpoint.
//
// +kubebuilder:validation:XValidation:rule="!has(self.own) || !self.own || !has(self.protocol) || self.protocol == 'TCP'",message="own is for TCP"
type IngressRule struct {
	// Endpoint is the name of a GraftEndpoint.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Endpoint string `json:"endpoint"`

	// Port is the one at which the program listens.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`

	// Protocol is TCP or UDP.
	//
	// +optional
	// +kubebuilder:default=TCP
	Protocol Protocol `json:"protocol,omitempty"`

	// Container is the container that listens. Without it, it is the one whose ports have this one,
	// or else the pod's first.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Container string `json:"container,omitempty"`

	// Own has a TCP server listen in the pod's own network, too. Without it, that is so where the
	// kubelet probes the port.
	//
	// +optional
	Own *bool `json:"own,omitempty"`

	// From says who reaches the servers at the endpoint; everybody, if it is not there. The pod's own
	// containers always do. In the pod's own network (own), the node does, too.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	From []Peer `json:"from,omitempty"`

	// Service is a Service of the policy's namespace, without a selector, whose endpoints the
	// servers are.
	//
	// +optional
	Service *ServicePort `json:"service,omitempty"`
}

// Peer is a part of who reaches a server: addresses, or pods of the same node. Pods of other nodes are
// addresses: those of their network, or of their node if they are grafted.
//
// +kubebuilder:validation:XValidation:rule="has(self.ipBlock) != (has(self.podSelector) || has(self.namespaceSelector))",message="a peer has an ipBlock, or a podSelector, a namespaceSelector or both"
type Peer struct {
	// IPBlock has addresses.
	//
	// +optional
	IPBlock *IPBlock `json:"ipBlock,omitempty"`

	// PodSelector selects pods of the node; all, if it is not there or {}. Without a
	// NamespaceSelector, they are of the policy's namespace.
	//
	// +optional
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`

	// NamespaceSelector selects namespaces by their labels; {} selects all.
	//
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
}

// IPBlock has the addresses of a prefix.
//
// +kubebuilder:validation:XValidation:rule="!has(self.except) || !isCIDR(self.cidr) || self.except.all(e, !isCIDR(e) || cidr(self.cidr).containsCIDR(e))",message="except has parts of the cidr"
type IPBlock struct {
	// CIDR is a prefix, such as 10.0.0.0/8.
	//
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="write a prefix, as 10.0.0.0/8 or 2001:db8::1/128"
	CIDR string `json:"cidr"`

	// Except are prefixes in it whose addresses are left out.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.all(e, isCIDR(e))",message="write prefixes, as 10.0.0.0/8 or 2001:db8::1/128"
	Except []string `json:"except,omitempty"`
}

// ServicePort is a port of a Service.
type ServicePort struct {
	// Name is the name of the Service.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// Port is the name of the Service's port; empty, if it has no name.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Port string `json:"port,omitempty"`
}

// EgressRule has clients that connect to a prefix do so from an endpoint.
type EgressRule struct {
	// Endpoint is the name of a GraftEndpoint.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Endpoint string `json:"endpoint"`

	// To are prefixes, such as 10.0.0.0/8, within the destinations of the endpoint. For a Unix
	// endpoint, they are the addresses that stand for it in the pod.
	//
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.all(c, isCIDR(c))",message="write prefixes, as 10.0.0.0/8 or 2001:db8::1/128"
	To []string `json:"to"`

	// Ports are PORT or FIRST-LAST; all, if there are none.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=11
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{0,4}(-[1-9][0-9]{0,4})?$`
	Ports string `json:"ports,omitempty"`

	// Protocol is TCP or UDP; both, if it is not there.
	//
	// +optional
	Protocol Protocol `json:"protocol,omitempty"`

	// Containers are those that the rule is for; all, if there are none.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=63
	Containers []string `json:"containers,omitempty"`
}

// GraftPolicyStatus is written by tsugiki-kube cluster.
type GraftPolicyStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Endpoints are the names of the endpoints that the policy names.
	//
	// +optional
	Endpoints string `json:"endpoints,omitempty"`
}

// GraftPolicyList is a list of policies.
//
// +kubebuilder:object:root=true
type GraftPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []GraftPolicy `json:"items"`
}
