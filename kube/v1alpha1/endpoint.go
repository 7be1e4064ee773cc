package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// EndpointType is the kind of an address.
//
// +kubebuilder:validation:Enum=IPv4;IPv6;Unix
type EndpointType string

// The kinds of addresses.
const (
	IPv4 EndpointType = "IPv4"
	IPv6 EndpointType = "IPv6"
	Unix EndpointType = "Unix"
)

// Words in the place of an address.
const (
	// NodeAddress is the node's InternalIP of the endpoint's family.
	NodeAddress = "Node"
	// AnyAddress is every address of the node for servers, and the one that the kernel chooses for
	// clients.
	AnyAddress = "Any"
)

// GraftEndpoint is an address of the nodes, and the pods that may use it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=ge,categories=tsugiki
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.spec.address`
// +kubebuilder:printcolumn:name="Ports",type=string,JSONPath=`.spec.ports`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Accepted")].message`
// +kubebuilder:printcolumn:name="Used",type=boolean,JSONPath=`.status.used`
// +kubebuilder:printcolumn:name="Path",type=string,priority=1,JSONPath=`.spec.path`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GraftEndpoint struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec GraftEndpointSpec `json:"spec"`
	// +optional
	Status GraftEndpointStatus `json:"status,omitempty"`
}

// GraftEndpointSpec says what the endpoint is, and for whom.
//
// +kubebuilder:validation:XValidation:rule="self.type == 'Unix' ? has(self.path) && !has(self.ports) : !has(self.path)",message="a Unix endpoint has a path and no ports; others have no path"
// +kubebuilder:validation:XValidation:rule="self.type == oldSelf.type",message="the type cannot change; make another endpoint"
// +kubebuilder:validation:XValidation:rule="self.type == 'Unix' || self.address in ['Node', 'Any'] || (isIP(self.address) && ip(self.address).family() == (self.type == 'IPv4' ? 4 : 6))",message="the address is Node, Any, or an IP address of the type"
// +kubebuilder:validation:XValidation:rule="!has(self.resolvers) || self.type == 'IPv6'",message="resolvers are for translate, which takes endpoints of type IPv6"
// +kubebuilder:validation:XValidation:rule="!has(self.destinations) || self.type == 'Unix' || self.destinations.all(d, isCIDR(d.cidr) && cidr(d.cidr).ip().family() == (self.type == 'IPv4' ? 4 : 6))",message="destinations are prefixes of the endpoint's type, as 10.0.0.0/8"
type GraftEndpointSpec struct {
	// Type is the kind of the address.
	Type EndpointType `json:"type"`

	// Address is an IP address that the nodes have; or Node, the node's InternalIP; or Any, every
	// address for servers and the kernel's choice for clients.
	//
	// +optional
	// +kubebuilder:default=Node
	// +kubebuilder:validation:MaxLength=64
	Address string `json:"address,omitempty"`

	// Ports are the ports at which pods listen: PORT or FIRST-LAST. Each rule of a pod gets one of
	// its own on its node. Without ports, no pod listens at the endpoint.
	//
	// +optional
	Ports PortRange `json:"ports,omitempty"`

	// Path is the path of the unix socket on the node. No folder of it may be a symbolic link.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=107
	// +kubebuilder:validation:XValidation:rule="self.matches('^(/[A-Za-z0-9_.-]+)+$') && !self.split('/').exists(p, p == '.' || p == '..')",message="the path is absolute, without . and .. and special characters"
	Path string `json:"path,omitempty"`

	// Destinations are what pods may reach through the endpoint. Without any, they reach nothing.
	// Loopback, link-local, multicast and other special addresses are reached only where a
	// destination names them or a part of them.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Destinations []Destination `json:"destinations,omitempty"`

	// Resolvers are asked for names on behalf of pods whose IPv4 is translated through the endpoint,
	// one after another, each as ADDR:PORT. The node's agent asks them, from the node's network, so that
	// pods need no destination for it. Without any, the endpoint is not for translate.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=80
	// +kubebuilder:validation:XValidation:rule="self.all(r, r.matches('^([0-9.]+|[[][0-9a-fA-F:.]+[]]):[1-9][0-9]{0,4}$') && isIP(r.startsWith('[') ? r.substring(1, r.lastIndexOf(']')) : r.substring(0, r.lastIndexOf(':'))) && int(r.substring(r.lastIndexOf(':') + 1)) <= 65535)",message="write ADDR:PORT, as 198.51.100.53:53 or [2001:db8::53]:53"
	Resolvers []string `json:"resolvers,omitempty"`

	// AllowedPods are the pods that may use the endpoint: those that one of the entries selects.
	// Without an entry, no pod may.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	AllowedPods []PodSelection `json:"allowedPods,omitempty"`
}

// PortRange is PORT or FIRST-LAST.
//
// +kubebuilder:validation:MaxLength=11
// +kubebuilder:validation:XValidation:rule="self.matches('^[1-9][0-9]{0,4}(-[1-9][0-9]{0,4})?$') && self.split('-').all(p, int(p) <= 65535) && int(self.split('-')[0]) <= int(self.split('-')[self.split('-').size() - 1])",message="write PORT or FIRST-LAST, from 1 to 65535"
type PortRange = string

// Destination is a prefix and, if they are given, some of its ports.
type Destination struct {
	// CIDR is a prefix, such as 10.0.0.0/8. The destination of a rule has to lie within it.
	//
	// +kubebuilder:validation:MaxLength=64
	CIDR string `json:"cidr"`

	// Ports are PORT or FIRST-LAST; all, if there are none.
	//
	// +optional
	Ports PortRange `json:"ports,omitempty"`
}

// PodSelection selects pods by labels that others than the pods' authors give: those of their
// namespaces. Among these pods, it may select by the pods' own labels.
type PodSelection struct {
	// NamespaceSelector selects namespaces; {} selects all.
	NamespaceSelector LabelSelector `json:"namespaceSelector"`

	// PodSelector selects pods of these namespaces; all, if it is not there.
	//
	// +optional
	PodSelector *LabelSelector `json:"podSelector,omitempty"`
}

// GraftEndpointStatus is written by tsugiki-kube cluster.
type GraftEndpointStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Used tells whether a policy names the endpoint. It is no number: all nodes watch all endpoints,
	// and would hear of each policy that comes or goes.
	//
	// +optional
	// +kubebuilder:default=false
	Used bool `json:"used"`
}

// GraftEndpointList is a list of endpoints.
//
// +kubebuilder:object:root=true
type GraftEndpointList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []GraftEndpoint `json:"items"`
}
