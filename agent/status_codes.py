"""The names of OPC UA StatusCodes: BadNodeIdUnknown instead of 0x80340000. Core: no IO.

The quality of a sample is such a code, whatever the protocol. The upper 16 bits are the condition, of which the names
are listed here (OPC 10000-6, Annex A.2); the lower ones are flags, of which only the overflow bit is shown.
"""

from __future__ import annotations

from functools import cache

OVERFLOW_BITS = 0x0000_0480  # InfoType DataValue (01 in bits 10, 11) and the Overflow bit 7: OPC 10000-4, 7.39.1

TAG_REMOVED = 0x808D_8000
"""Of the last fact of a tag that was removed from the tag files: BadOutOfService with StructureChanged. Devices report
BadOutOfService too, and such a tag is bad, not removed."""

CLOCK_UNCERTAIN = 0x4000_8000
"""Of a value that is good but for its time, which came from a clock of its node that is not believed, or is another one
than the source gave, because that cannot be used: Uncertain with StructureChanged, which no source sends. The lower 16
bits hold the flags of the value, too."""


def is_good(code: int) -> bool:
    """Whether the severity, the upper two bits, is Good. The other bits say more about a value that is good."""
    return not code >> 30


def with_doubtful_time(code: int) -> int:
    """The status of a value whose time is not believed: a good one becomes uncertain."""
    return code if code >> 30 else CLOCK_UNCERTAIN | code & 0xFFFF


def status_name(code: int) -> str:
    """The name of a status, such as Good or BadTimeout, with `+Overflow` if the server's queue overflowed before the
    value, and `+Clock` if its time came from a clock that is not believed. A code without a name gives its severity and
    its number."""
    name = _names().get(code >> 16)
    if code & 0xFFFF_8000 == CLOCK_UNCERTAIN:
        return "Uncertain+Clock"
    if name is None:
        return f"{('Good', 'Uncertain', 'Bad', 'Bad')[code >> 30]} 0x{code:08X}"
    return f"{name}+Overflow" if code & OVERFLOW_BITS == OVERFLOW_BITS else name


@cache
def _names() -> dict[int, str]:
    return {int(number, 16): name for number, _, name in (entry.partition(":") for entry in _TABLE.split())}


_TABLE = """
0000:Good 002D:GoodSubscriptionTransferred 002E:GoodCompletesAsynchronously 002F:GoodOverload 0030:GoodClamped
0096:GoodLocalOverride 00A2:GoodEntryInserted 00A3:GoodEntryReplaced 00A5:GoodNoData 00A6:GoodMoreData
00A7:GoodCommunicationEvent 00A8:GoodShutdownEvent 00A9:GoodCallAgain 00AA:GoodNonCriticalTimeout
00BA:GoodResultsMayBeIncomplete 00D9:GoodDataIgnored 00DC:GoodEdited 00DD:GoodPostActionFailed
00DF:GoodRetransmissionQueueNotSupported 00E0:GoodDependentValueChanged 00EB:GoodSubNormal
00EF:GoodPasswordChangeRequired 0116:GoodEdited_DependentValueChanged 0117:GoodEdited_DominantValueChanged
0118:GoodEdited_DominantValueChanged_DependentValueChanged 0401:GoodCascadeInitializationAcknowledged
0402:GoodCascadeInitializationRequest 0403:GoodCascadeNotInvited 0404:GoodCascadeNotSelected 0407:GoodFaultStateActive
0408:GoodInitiateFaultState 0409:GoodCascade 4000:Uncertain 406C:UncertainReferenceOutOfServer
408F:UncertainNoCommunicationLastUsableValue 4090:UncertainLastUsableValue 4091:UncertainSubstituteValue
4092:UncertainInitialValue 4093:UncertainSensorNotAccurate 4094:UncertainEngineeringUnitsExceeded
4095:UncertainSubNormal 40A4:UncertainDataSubNormal 40BC:UncertainReferenceNotDeleted
40C0:UncertainNotAllNodesAvailable 40DE:UncertainDominantValueChanged 40E2:UncertainDependentValueChanged
40F2:UncertainOverRange 40F3:UncertainUnderRange 4208:UncertainTransducerInManual 4209:UncertainSimulatedValue
420A:UncertainSensorCalibration 420F:UncertainConfigurationError 8000:Bad 8001:BadUnexpectedError
8002:BadInternalError 8003:BadOutOfMemory 8004:BadResourceUnavailable 8005:BadCommunicationError 8006:BadEncodingError
8007:BadDecodingError 8008:BadEncodingLimitsExceeded 8009:BadUnknownResponse 800A:BadTimeout
800B:BadServiceUnsupported 800C:BadShutdown 800D:BadServerNotConnected 800E:BadServerHalted 800F:BadNothingToDo
8010:BadTooManyOperations 8011:BadDataTypeIdUnknown 8012:BadCertificateInvalid 8013:BadSecurityChecksFailed
8014:BadCertificateTimeInvalid 8015:BadCertificateIssuerTimeInvalid 8016:BadCertificateHostNameInvalid
8017:BadCertificateUriInvalid 8018:BadCertificateUseNotAllowed 8019:BadCertificateIssuerUseNotAllowed
801A:BadCertificateUntrusted 801B:BadCertificateRevocationUnknown 801C:BadCertificateIssuerRevocationUnknown
801D:BadCertificateRevoked 801E:BadCertificateIssuerRevoked 801F:BadUserAccessDenied 8020:BadIdentityTokenInvalid
8021:BadIdentityTokenRejected 8022:BadSecureChannelIdInvalid 8023:BadInvalidTimestamp 8024:BadNonceInvalid
8025:BadSessionIdInvalid 8026:BadSessionClosed 8027:BadSessionNotActivated 8028:BadSubscriptionIdInvalid
802A:BadRequestHeaderInvalid 802B:BadTimestampsToReturnInvalid 802C:BadRequestCancelledByClient
8031:BadNoCommunication 8032:BadWaitingForInitialData 8033:BadNodeIdInvalid 8034:BadNodeIdUnknown
8035:BadAttributeIdInvalid 8036:BadIndexRangeInvalid 8037:BadIndexRangeNoData 8038:BadDataEncodingInvalid
8039:BadDataEncodingUnsupported 803A:BadNotReadable 803B:BadNotWritable 803C:BadOutOfRange 803D:BadNotSupported
803E:BadNotFound 803F:BadObjectDeleted 8040:BadNotImplemented 8041:BadMonitoringModeInvalid
8042:BadMonitoredItemIdInvalid 8043:BadMonitoredItemFilterInvalid 8044:BadMonitoredItemFilterUnsupported
8045:BadFilterNotAllowed 8046:BadStructureMissing 8047:BadEventFilterInvalid 8048:BadContentFilterInvalid
8049:BadFilterOperandInvalid 804A:BadContinuationPointInvalid 804B:BadNoContinuationPoints
804C:BadReferenceTypeIdInvalid 804D:BadBrowseDirectionInvalid 804E:BadNodeNotInView 804F:BadServerUriInvalid
8050:BadServerNameMissing 8051:BadDiscoveryUrlMissing 8052:BadSemaphoreFileMissing 8053:BadRequestTypeInvalid
8054:BadSecurityModeRejected 8055:BadSecurityPolicyRejected 8056:BadTooManySessions 8057:BadUserSignatureInvalid
8058:BadApplicationSignatureInvalid 8059:BadNoValidCertificates 805A:BadRequestCancelledByRequest
805B:BadParentNodeIdInvalid 805C:BadReferenceNotAllowed 805D:BadNodeIdRejected 805E:BadNodeIdExists
805F:BadNodeClassInvalid 8060:BadBrowseNameInvalid 8061:BadBrowseNameDuplicated 8062:BadNodeAttributesInvalid
8063:BadTypeDefinitionInvalid 8064:BadSourceNodeIdInvalid 8065:BadTargetNodeIdInvalid
8066:BadDuplicateReferenceNotAllowed 8067:BadInvalidSelfReference 8068:BadReferenceLocalOnly 8069:BadNoDeleteRights
806A:BadServerIndexInvalid 806B:BadViewIdUnknown 806D:BadTooManyMatches 806E:BadQueryTooComplex 806F:BadNoMatch
8070:BadMaxAgeInvalid 8071:BadHistoryOperationInvalid 8072:BadHistoryOperationUnsupported 8073:BadWriteNotSupported
8074:BadTypeMismatch 8075:BadMethodInvalid 8076:BadArgumentsMissing 8077:BadTooManySubscriptions
8078:BadTooManyPublishRequests 8079:BadNoSubscription 807A:BadSequenceNumberUnknown 807B:BadMessageNotAvailable
807C:BadInsufficientClientProfile 807D:BadTcpServerTooBusy 807E:BadTcpMessageTypeInvalid
807F:BadTcpSecureChannelUnknown 8080:BadTcpMessageTooLarge 8081:BadTcpNotEnoughResources 8082:BadTcpInternalError
8083:BadTcpEndpointUrlInvalid 8084:BadRequestInterrupted 8085:BadRequestTimeout 8086:BadSecureChannelClosed
8087:BadSecureChannelTokenUnknown 8088:BadSequenceNumberInvalid 8089:BadConfigurationError 808A:BadNotConnected
808B:BadDeviceFailure 808C:BadSensorFailure 808D:BadOutOfService 808E:BadDeadbandFilterInvalid
8097:BadRefreshInProgress 8098:BadConditionAlreadyDisabled 8099:BadConditionDisabled 809A:BadEventIdUnknown
809B:BadNoData 809D:BadDataLost 809E:BadDataUnavailable 809F:BadEntryExists 80A0:BadNoEntryExists
80A1:BadTimestampNotSupported 80AB:BadInvalidArgument 80AC:BadConnectionRejected 80AD:BadDisconnect
80AE:BadConnectionClosed 80AF:BadInvalidState 80B0:BadEndOfStream 80B1:BadNoDataAvailable 80B2:BadWaitingForResponse
80B3:BadOperationAbandoned 80B4:BadExpectedStreamToBlock 80B5:BadWouldBlock 80B6:BadSyntaxError
80B7:BadMaxConnectionsReached 80B8:BadRequestTooLarge 80B9:BadResponseTooLarge 80BB:BadEventNotAcknowledgeable
80BD:BadInvalidTimestampArgument 80BE:BadProtocolVersionUnsupported 80BF:BadStateNotActive
80C1:BadFilterOperatorInvalid 80C2:BadFilterOperatorUnsupported 80C3:BadFilterOperandCountMismatch
80C4:BadFilterElementInvalid 80C5:BadFilterLiteralInvalid 80C6:BadIdentityChangeNotSupported 80C8:BadNotTypeDefinition
80C9:BadViewTimestampInvalid 80CA:BadViewParameterMismatch 80CB:BadViewVersionInvalid 80CC:BadConditionAlreadyEnabled
80CD:BadDialogNotActive 80CE:BadDialogResponseInvalid 80CF:BadConditionBranchAlreadyAcked
80D0:BadConditionBranchAlreadyConfirmed 80D1:BadConditionAlreadyShelved 80D2:BadConditionNotShelved
80D3:BadShelvingTimeOutOfRange 80D4:BadAggregateListMismatch 80D5:BadAggregateNotSupported
80D6:BadAggregateInvalidInputs 80D7:BadBoundNotFound 80D8:BadBoundNotSupported 80DA:BadAggregateConfigurationRejected
80DB:BadTooManyMonitoredItems 80E1:BadDominantValueChanged 80E3:BadDependentValueChanged 80E4:BadRequestNotAllowed
80E5:BadTooManyArguments 80E6:BadSecurityModeInsufficient 80E7:BadDataSetIdInvalid 80E8:BadTransactionPending
80E9:BadLocked 80EA:BadIndexRangeDataMismatch 80EC:BadRequiresLock 80ED:BadLocaleNotSupported 80EE:BadServerTooBusy
80F0:BadNoValue 80F1:BadTransactionFailed 810D:BadCertificateChainIncomplete 810E:BadLicenseExpired
810F:BadLicenseLimitsExceeded 8110:BadLicenseNotAvailable 8111:BadNotExecutable 8112:BadNumericOverflow
8113:BadRequestNotComplete 8114:BadCertificatePolicyCheckFailed 8115:BadAlreadyExists 8119:BadEdited_OutOfRange
811A:BadInitialValue_OutOfRange 811B:BadOutOfRange_DominantValueChanged 811C:BadEdited_OutOfRange_DominantValueChanged
811D:BadOutOfRange_DominantValueChanged_DependentValueChanged
811E:BadEdited_OutOfRange_DominantValueChanged_DependentValueChanged 811F:BadTicketRequired 8120:BadTicketInvalid
"""
